"""The argument parser: the single source of ``--help`` and of the man page.

Only the standard library is imported at module level, so that the man page can be built before the
extensions are, and so that ``kestrel --help`` costs nothing.
"""

from __future__ import annotations

from kestrel.cli.groups import (
    BACKENDS, add_json, add_messages, add_model, add_no_mmap, add_plain_content,
    add_prompt_option, add_refresh, add_runtime, add_sampling, model_help,
)  # fmt: skip
from kestrel.cli.options import MAX_THREADS, Parser, count, isa, path, text, token_ids


__all__ = ["BACKENDS", "COMMANDS", "get_parser"]

#: Every command, with the line that ``kestrel --help`` prints about it.
COMMANDS = {
    "generate": "continue a text (the default command)",
    "chat": "talk with a model",
    "inspect": "show what is understood of a model folder, and every warning",
    "devices": "show backends, instruction sets, threads and kernels of this machine",
    "bench": "measure a model: tokens per second and time to first token",
    "verify": "check that a model gives the same bits however it is run",
    "diff": "compare a model with a reference, stage by stage",
}

_DESCRIPTION = (
    "Runs Llama-family language models from Hugging Face folders. The first argument names the "
    "command; anything else there is taken for an argument of generate, so that "
    "'kestrel \"Once upon a time\"' writes on from that text, with the bundled demo model unless "
    "--model names another. For a prompt that is itself the name of a command, or that begins "
    "with a dash, write 'kestrel generate -- PROMPT'."
)

_SECTIONS = (
    ("examples", (
        ('kestrel "Once upon a time"', "continue a text with the bundled demo model"),
        ("kestrel --model DIR --greedy - < prompt.txt", "the prompt from standard input"),
        ("kestrel chat DIR", "talk with the model in the folder DIR"),
        ("kestrel chat ORG/NAME", "the same with a model of the Hugging Face hub, which is fetched "
         "once where huggingface_hub is installed; a folder of that name goes before"),
        ("kestrel verify DIR", "the same bits on every instruction set, thread count and batch?"),
    )),
    ("exit status", (
        ("0", "success"),
        ("1", "verify or diff found a difference"),
        ("2", "an input is wrong: an option, a prompt, a file of the model"),
        ("3", "the environment does not allow it: backend, memory, file permissions, full disk"),
        ("70", "an error in kestrel itself; its traceback is printed"),
        ("130", "interrupted with Ctrl-C; what was written before stays"),
        ("141", "the reader of the output closed it, as in 'kestrel ... | head'"),
    )),
    ("environment", (
        ("KESTREL_BACKEND", "the backend that --backend auto stands for"),
        ("KESTREL_ISA", "highest instruction set the cpu backend may use (see kestrel devices)"),
        ("KESTREL_THREADS", "number of threads of the cpu backend"),
        ("KESTREL_EAGER", "1: run command by command and stop at the first value not finite"),
        ("OPENBLAS_NUM_THREADS", "threads of NumPy, which the reference backend uses (default: 1)"),
        ("HF_HOME, HF_HUB_CACHE", "where the hub's cache is (default: ~/.cache/huggingface/hub)"),
        ("HF_HUB_OFFLINE", "1: never ask the hub, use what the cache has"),
        ("HF_TOKEN", "your access token of the hub, for gated and private models"),
        ("NO_COLOR", "set to anything: no bold text on the terminal"),
    )),
)


def get_parser() -> Parser:
    """The parser of the whole program; ``args.command`` names the command, see ``COMMANDS``."""
    from kestrel import __version__

    parser = Parser(
        prog="kestrel", description=_DESCRIPTION, sections=_SECTIONS,
        synopsis=("[generate] [OPTIONS] [PROMPT]", "COMMAND [OPTIONS] [MODEL]"),
    )
    parser.add_argument("--version", action="version", version=f"kestrel {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, title="commands", metavar="COMMAND", prog="kestrel",
    )
    builders = (_generate, _chat, _inspect, _devices, _bench, _verify, _diff)
    for (name, summary), build in zip(COMMANDS.items(), builders):
        sub = commands.add_parser(name, help=summary)
        sub.usage = f"kestrel {name} [OPTIONS]"
        build(sub)
        sub.add_argument("--debug", action="store_true",
                         help="show the traceback of an error, not its message alone")
        sub.set_defaults(parser=sub)
    return parser


def _generate(parser: Parser) -> None:
    parser.usage += " [PROMPT]"
    parser.description = (
        "Writes PROMPT and its continuation to standard output, token by token as they come; the "
        "settings used and the figures go to standard error."
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("prompt", nargs="?", metavar="PROMPT", type=text,
                        help="the text to continue, quoted as one argument; '-' reads it from "
                        "standard input, without one line end at its end")
    prompt.add_argument("--file", metavar="FILE", type=path,
                        help="read the prompt from a UTF-8 file of at most 64 MiB ('-': from "
                        "standard input), without one line end at its end")
    prompt.add_argument("--ids", metavar="IDS", type=token_ids,
                        help="the prompt as token ids, separated by commas or spaces")
    add_plain_content(parser, "the prompt")
    parser.add_argument("--model", metavar="MODEL", type=path, help=model_help())
    add_refresh(parser)
    add_sampling(parser, "256")
    output = parser.add_argument_group("output")
    output.add_argument("--logprobs", metavar="N", type=count(0),
                        help="one line a token: id, log-probability, text, and the N likeliest "
                        "tokens beside it (natural logarithm, of the model's own distribution)")
    output.add_argument("--logprobs-after-sampling", action="store_true",
                        help="with --logprobs: those of the distribution that the token was drawn "
                        "from, after every sampling option, instead of the model's own")
    output.add_argument("--json", action="store_true",
                        help="print one JSON object at the end instead of the text")
    output.add_argument("--no-echo", action="store_true", help="do not print the prompt")
    output.add_argument("--quiet", action="store_true",
                        help="no settings and no figures; warnings stay")
    add_runtime(parser)


def _chat(parser: Parser) -> None:
    add_model(parser, "the bundled demo model, which has no chat template and so needs "
              "--chat-template")
    parser.description = (
        "An interactive chat. Ctrl-C stops the answer, not the program; Ctrl-D ends it; a "
        "backslash at the end of a line continues the message on the next; /help lists the "
        "commands. The conversation stays in the cache, so each turn computes new tokens only."
    )
    add_messages(parser)
    add_plain_content(parser, "what you write")
    add_sampling(parser, "the context limit")
    add_runtime(parser)


def _inspect(parser: Parser) -> None:
    add_model(parser)
    parser.description = (
        "Shows what is understood of a model folder, with where each value comes from; and with "
        "--prompt or --message the tokens of a text, control words in it marked."
    )
    group = parser.add_argument_group("tokens of a text")
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", type=text,
                        help="show the tokens of this text, as generate would run it")
    prompt.add_argument("--message", metavar="TEXT", type=text,
                        help="show the tokens of this first message, as chat would run it")
    add_messages(group)
    add_plain_content(group, "the text")
    add_no_mmap(parser)
    add_json(parser)


def _devices(parser: Parser) -> None:
    add_json(parser)


def _bench(parser: Parser) -> None:
    add_model(parser)
    parser.description = (
        "Measures prefill, decode and time to first token, with a checksum of the logits, beside "
        "what this machine could do: bytes read and multiply-adds per second. Says what bounds "
        "each: bytes, arithmetic, barriers (threads that wait for each other) or the host (Python)."
    )
    protocol = parser.add_argument_group("protocol")
    for option, low, default, meaning in (
        ("--prompt-tokens", 1, 16, "length of the prompt"),
        ("--new-tokens", 2, 32, "tokens generated after it"),
        ("--prefill-tokens", 1, 128, "length of the prompt of the prefill measurement"),
        ("--warmup", 0, 2, "runs before the measured ones"),
        ("--runs", 1, 5, "measured runs; the table shows their median, minimum and maximum"),
    ):
        protocol.add_argument(option, metavar="N", type=count(low), default=default,
                              help=f"{meaning} (default: %(default)s)")
    add_json(parser)
    add_runtime(parser, several_threads=True)


def _verify(parser: Parser) -> None:
    add_model(parser)
    parser.description = (
        "Runs one text on every instruction set of this processor, with several thread counts "
        "and prefill chunks, alone and in a batch, with a cold and a warm prefix, and compares "
        "the bits of the logits."
    )
    add_prompt_option(parser)
    parser.add_argument("--new-tokens", metavar="N", type=count(1), default=8,
                        help="tokens decoded after the prompt (default: %(default)s)")
    parser.add_argument("--isa", metavar="NAME", type=isa, action="append",
                        help="only this instruction set; may be given several times (default: all "
                        "that the processor supports)")
    parser.add_argument("--threads", metavar="N", type=count(1, MAX_THREADS),
                        help="a thread count to try beside 1 and 2 (default: the one that a "
                        "plain run would use)")
    add_no_mmap(parser)
    add_json(parser)


def _diff(parser: Parser) -> None:
    add_model(parser)
    parser.description = (
        "Compares every stage of the forward pass with a dump made by transformers "
        "(tools/dump_reference.py makes one where torch is installed), or with another backend, "
        "and names the first stage beyond its bound."
    )
    add_prompt_option(parser)
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--reference", metavar="FILE", type=path,
                         help="safetensors file of the reference's stages")
    against.add_argument("--against", metavar="BACKEND", choices=BACKENDS,
                         help="compare with this backend (default: reference, which is NumPy with "
                         "sums in float64)")
    add_json(parser)
    add_runtime(parser)
