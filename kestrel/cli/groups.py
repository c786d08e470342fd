"""Options that several commands share. Only the standard library is imported, as in the parser."""

from __future__ import annotations

from kestrel.cli.options import (
    MAX_THREADS, Options, Parser, bias, count, isa, number, path, text, thread_counts, token_ids,
)  # fmt: skip

__all__ = [
    "BACKENDS", "add_json", "add_messages", "add_model", "add_no_mmap",
    "add_plain_content", "add_prompt_option", "add_refresh", "add_runtime", "add_sampling",
    "model_help",
]  # fmt: skip

#: Values of --backend; "auto", and those of kestrel.backends, which is not imported for them.
BACKENDS = ("auto", "cpu", "reference", "null")

_DEMO = "the bundled demo model"


def model_help(default: str = _DEMO) -> str:
    """The help of whatever names a model."""
    return (
        "folder of the model, or its id on the Hugging Face hub: ORG/NAME, or ORG/NAME@REVISION "
        f"for a branch, tag or commit (default: {default})"
    )


def add_model(parser: Parser, default: str = _DEMO) -> None:
    """MODEL, and what belongs to it."""
    parser.usage += " [MODEL]"
    parser.add_argument("model", nargs="?", metavar="MODEL", type=path, help=model_help(default))
    add_refresh(parser)


def add_refresh(parser: Parser) -> None:
    """Whether to look for a newer commit of a model of the hub."""
    parser.add_argument("--refresh", action="store_true",
                        help="of a model of the hub, fetch what is new; without it what lies in "
                        "the cache is used without asking the network")


def add_messages(group: Options) -> None:
    """What a chat begins with."""
    group.add_argument("--system", metavar="TEXT", type=text, help="the system message")
    group.add_argument("--chat-template", metavar="FILE", type=path,
                       help="Jinja template to use instead of the model's own: a UTF-8 file of at "
                       "most 64 MiB")


def add_plain_content(group: Options, what: str) -> None:
    """Whether control words in a text are text."""
    group.add_argument("--plain-content", action="store_true",
                       help=f"encode {what} as plain text: control words in it, such as "
                       "<|im_end|>, are not control tokens")


def add_json(parser: Parser) -> None:
    """JSON instead of a table."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_prompt_option(parser: Parser) -> None:
    """A text, or its ids."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", type=text, help="the text to run")
    prompt.add_argument("--ids", metavar="IDS", type=token_ids,
                        help="its token ids instead, separated by commas or spaces")


def add_sampling(parser: Parser, most_tokens: str) -> None:
    """How tokens are chosen; ``most_tokens`` says how many there are by default."""
    group = parser.add_argument_group("sampling (defaults: the model's generation_config.json)")
    group.add_argument("--max-tokens", metavar="N", type=count(1),
                       help=f"stop after this many new tokens (default: {most_tokens})")
    for option, meaning in (
        ("--temperature", "divide the logits by T; 0 takes the likeliest token"),
        ("--top-p", "keep the likeliest tokens that together have probability P"),
        ("--min-p", "keep tokens at least P times as likely as the likeliest"),
        ("--repetition-penalty", "divide (or multiply, below zero) the logits of tokens seen in "
         "the prompt or the answer; 1 is none"),
        ("--presence-penalty", "subtract from the logit of every token in the answer"),
        ("--frequency-penalty", "subtract for each time a token is in the answer"),
    ):
        metavar = {"--temperature": "T", "--top-p": "P", "--min-p": "P"}.get(option, "X")
        group.add_argument(option, metavar=metavar, type=number, help=meaning)
    group.add_argument("--top-k", metavar="K", type=count(0),
                       help="keep the K likeliest tokens; 0 keeps all")
    group.add_argument("--logit-bias", metavar="ID=X", type=bias, action="append",
                       help="add X to the logit of a token id; may be given several times")
    group.add_argument("--greedy", action="store_true",
                       help="the likeliest token each time, after penalties and biases: "
                       "the same as --temperature 0")
    group.add_argument("--seed", metavar="N", type=count(0, 2**64 - 1),
                       help="seed of the random numbers (default: drawn, and shown)")
    group.add_argument("--stop", metavar="TEXT", type=text, action="append",
                       help="end before this text; may be given several times")
    group.add_argument("--stop-token", metavar="ID", type=count(0), action="append",
                       dest="stop_token_ids",
                       help="end at this token id too; may be given several times")
    group.add_argument("--ignore-eos", action="store_true",
                       help="go on past the model's end tokens, not past --stop-token")


def add_runtime(parser: Parser, several_threads: bool = False) -> None:
    """How to run a model. With ``several_threads``, --threads is a list of counts."""
    group = parser.add_argument_group("running")
    group.add_argument("--backend", metavar="NAME", choices=BACKENDS, default="auto",
                       help="auto, cpu, reference or null (default: auto)")
    default = "(default: what the system grants)"
    if several_threads:
        group.add_argument("--threads", metavar="N[,N...]", type=thread_counts,
                           help="threads of the cpu backend; several counts, as in 1,2,4, are "
                           f"compared {default}")
    else:
        group.add_argument("--threads", metavar="N", type=count(1, MAX_THREADS),
                           help=f"threads of the cpu backend {default}")
    group.add_argument("--isa", metavar="NAME", type=isa,
                       help="highest instruction set of the cpu backend, as in KESTREL_ISA")
    group.add_argument("--kv-dtype", choices=("float32", "float16"), default="float32",
                       help="element type of the key-value cache (default: %(default)s); float16 "
                       "halves its memory and changes the numbers")
    group.add_argument("--max-context", metavar="N", type=count(1),
                       help="positions to allow (default: what the model was made for)")
    add_no_mmap(group)


def add_no_mmap(group: Options) -> None:
    """How to read the weights."""
    group.add_argument("--no-mmap", action="store_true",
                       help="copy the weights into memory instead of mapping the files: for "
                       "network disks, and where mapped files have small pages a token takes "
                       "up to a tenth less time")
