"""The parser: what it accepts, what it refuses and in which words."""

import ast
import pathlib
import subprocess
import sys

import pytest

from kestrel import backends, runtime
from kestrel.cli import main, parser
from kestrel.cli.arguments import parse
from kestrel.cli.options import MAX_THREADS
from kestrel.model import DEMO_MODEL


def test_a_text_alone_is_a_prompt_of_generate():
    args = parse(["Once upon a time"])
    assert (args.command, args.prompt, args.model) == ("generate", "Once upon a time", None)


def test_options_may_come_before_the_prompt():
    args = parse(["--model", "folder", "--seed", "7", "Once"])
    assert (args.command, args.prompt, args.model, args.seed) == ("generate", "Once", "folder", 7)


@pytest.mark.parametrize("command", parser.COMMANDS)
def test_the_first_argument_names_the_command(command):
    assert parse([command]).command == command


@pytest.mark.parametrize(
    ("argv", "prompt"),
    [
        (["generate", "chat"], "chat"),
        (["--", "chat"], "chat"),
        (["--", "--model"], "--model"),
        (["generate", "--", "-"], "-"),
        (["-5 degrees"], "-5 degrees"),
        ([""], ""),
    ],
)
def test_prompts_that_look_like_something_else(argv, prompt, capsys):
    args = parse(argv)
    assert (args.command, args.prompt) == ("generate", prompt)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("devcies", "'devcies' is no command: did you mean 'devices'?"),
        ("verfy", "'verfy' is no command: did you mean 'verify'?"),
        (str(DEMO_MODEL), "is a model's folder: name it with --model"),
    ],
)
def test_a_misspelt_command_or_a_folder_is_refused(word, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse([word])
    assert exit_.value.code == 2 and message in capsys.readouterr().err


def test_a_command_behind_an_option_is_refused(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["--model", "folder", "chat"])
    assert exit_.value.code == 2
    assert "a command has to be the first argument, found 'chat'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--temprature=1", "hi"], ["--temprature", "did you mean --temperature?"]),
        (["--temp", "1", "hi"], ["unknown option --temp"]),  # no abbreviations
        (["--max", "3", "hi"], ["option --max: did you mean --max-tokens or --max-context?"]),
        (["chat", "--model", "DIR"], ["unknown option --model: write kestrel chat DIR\n"]),
        (["chat", "--model=DIR"], ["unknown option --model: write kestrel chat DIR\n"]),
        (["bench", "--model"], ["unknown option --model: write kestrel bench MODEL\n"]),
        (["--", "-hi", "--max-tokens", "2"], ["--max-tokens stands behind --", "before --"]),
        (["--", "-hi", "-there"], ["expected one prompt, found '-hi' and '-there'"]),
        (["--xyzzy"], ["unknown option --xyzzy", "kestrel generate --help"]),
        (["bench", "--seed", "1"], ["unknown option --seed"]),
        (["bench", "--threads", "1,x"], ["--threads", "from 1 to 256", "'1,x'"]),
        (["bench", "--threads", "2,0"], ["--threads", "from 1 to 256", "'2,0'"]),
        (["bench", "--threads", ""], ["--threads", "from 1 to 256", "''"]),
        (["bench", "--threads", "1,,2"], ["--threads", "as in 1,2,4", "'1,,2'"]),
        (["bench", "--threads", "1,2,300"], ["--threads", "from 1 to 256", "'1,2,300'"]),
        (["--threads", "257", "hi"], ["--threads", "from 1 to 256", "'257'"]),
        (["verify", "--threads", "257"], ["--threads", "from 1 to 256", "'257'"]),
        (["bench", "--threads", "2,1,2"], ["--threads", "each thread count once", "'2,1,2'"]),
        (["--threads", "1,2", "hi"], ["--threads", "whole number", "'1,2'"]),
        (["Once", "upon"], ["expected one prompt, found 'Once' and 'upon'", "quote"]),
        (["inspect", "a", "b"], ["expected one argument, found 'a' and 'b'"]),
        (["devices", "a"], ["expected no argument here, found 'a'"]),
        (["--top-k", "x", "hi"], ["--top-k", "a whole number of at least 0", "'x'"]),
        (["--top-k", "-1", "hi"], ["--top-k", "a whole number of at least 0", "'-1'"]),
        (["--top-k", "1.5", "hi"], ["--top-k", "'1.5'"]),
        (["--top-k", "\N{ARABIC-INDIC DIGIT ONE}", "hi"], ["--top-k", "whole number"]),
        (["--top-p", "nan", "hi"], ["--top-p", "expected a finite number, found 'nan'"]),
        (["--temperature", "", "hi"], ["--temperature", "expected a finite number, found ''"]),
        (["--seed", str(2**64), "hi"], ["--seed", f"from 0 to {2**64 - 1}", str(2**64)]),
        (["--max-tokens", "0", "hi"], ["--max-tokens", "at least 1", "'0'"]),
        (["--threads", "0", "hi"], ["--threads", "from 1 to 256", "'0'"]),
        (["--temperature", "inf", "hi"], ["--temperature", "a finite number, found 'inf'"]),
        (["--logit-bias", "5=inf", "hi"], ["--logit-bias", "a finite number, or -inf", "'inf'"]),
        (["--logit-bias", "13", "hi"], ["--logit-bias", "expected ID=X", "'13'"]),
        (["--ids", " , "], ["--ids", "token ids", "' , '"]),
        (["--ids", "1,two"], ["--ids", "whole number", "'two'"]),
        (["--ids", "1", "hi"], ["not allowed with"]),
        (["--model", "", "hi"], ["--model", "expected a path, found ''"]),
        (["--model", "a\0b", "hi"], ["--model", "expected a path", r"'a\x00b'"]),
        (["--kv-dtype", "int8", "hi"], ["--kv-dtype", "'int8'", "float32"]),
        (["--backend", "x", "hi"], ["--backend", "'x'", "reference"]),
        (["diff", "--against", "x"], ["--against", "'x'", "reference"]),
        (["--isa", "", "hi"], ["--isa", "instruction set", "found ''"]),
        (["--stop", "\udcff", "hi"], ["--stop", "UTF-8", "the byte 0xff at offset 0"]),
        (["chat", "--system", "a\ud800"], ["--system", "UTF-8", "found U+D800"]),
        (["diff", "--reference", "a", "--against", "cpu"], ["--against", "not allowed with"]),
    ],
)
def test_wrong_arguments_name_option_expected_and_found(argv, parts, capsys):
    assert main(argv) == 2
    message = capsys.readouterr().err
    for part in parts:
        assert part in message


def test_the_backends_of_the_options_are_those_that_exist():
    assert parser.BACKENDS == ("auto", *backends.NAMES)


def test_the_most_threads_of_the_options_are_those_that_the_pool_can_hold():
    assert MAX_THREADS == runtime.MAX_THREADS


@pytest.mark.parametrize("command", [name for name in parser.COMMANDS if name != "devices"])
def test_weights_can_be_read_instead_of_mapped_with_every_command(command):
    # What SafetensorsFile advises where a file cannot be mapped.
    assert parse([command, "--no-mmap"]).no_mmap and not parse([command]).no_mmap


def test_values_of_options():
    args = parse(["--ids", "0, 3895 562", "--logit-bias", "13=-2.5", "--logit-bias", "4=-inf",
                  "--stop", "a", "--stop", "b", "--presence-penalty", "-0.5"])  # fmt: skip
    assert args.ids == [0, 3895, 562]
    assert args.logit_bias == [(13, -2.5), (4, float("-inf"))]
    assert args.stop == ["a", "b"]
    assert args.presence_penalty == -0.5
    assert parse(["bench", "--threads", "4,1"]).threads == [4, 1]
    assert parse(["bench"]).threads is None and parse(["--threads", "4"]).threads == 4


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command_and_exit_status(argv, capsys):
    assert main(argv) == 0
    text = capsys.readouterr().out
    for word in (*parser.COMMANDS, "KESTREL_ISA", "130"):
        assert f"  {word}" in text


def test_version(capsys):
    import kestrel

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kestrel {kestrel.__version__}\n"


@pytest.mark.parametrize("name", ["parser", "groups", "options", "main"])
def test_the_parser_imports_only_the_standard_library_at_module_level(name):
    """The man page is built before the extensions are."""
    source = pathlib.Path(parser.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] in sys.stdlib_module_names or node.module.startswith(
                "kestrel.cli."
            )
        elif isinstance(node, ast.Import):
            assert all(alias.name in sys.stdlib_module_names for alias in node.names)


def test_help_loads_neither_numpy_nor_the_tokenizer():
    code = (
        "import sys; from kestrel.cli import main; main(['--help']); "
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert "kestrel.cli.parser" in loaded
    assert not {"numpy", "tokenizers", "jinja2", "tqdm", "kestrel._ops"} & set(loaded)
