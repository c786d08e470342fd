"""The arguments as a namespace, or one line that says what is wrong with them."""

from __future__ import annotations

import difflib
import os

from kestrel.cli.parser import COMMANDS, get_parser

__all__ = ["parse"]


def parse(argv: list[str]):
    """The arguments as a namespace. Exits like argparse, after saying what was wrong."""
    parser = get_parser()
    if not argv or argv == ["help"]:
        parser.print_help()
        parser.exit()
    implicit = argv[0] not in (*COMMANDS, "-h", "--help", "--version")
    args, unknown = parser.parse_known_args(["generate", *argv] if implicit else argv)
    if unknown:
        behind = argv[argv.index("--") :] if "--" in argv else []
        args.parser.error(_unknown(unknown[0], args, behind))
    if implicit and args.prompt and "--" not in argv:
        _refuse_mistyped(args)
    return args


def _refuse_mistyped(args) -> None:
    """A single word that is nearly a command, or a model's folder, is hardly meant as a prompt."""
    near = difflib.get_close_matches(args.prompt, COMMANDS, n=1, cutoff=0.75)
    if near:
        what = f"{args.prompt!r} is no command: did you mean {near[0]!r}?"
        if near[0] == args.prompt:
            what = f"a command has to be the first argument, found {args.prompt!r} later;"
        args.parser.error(f"{what} For a prompt: kestrel generate -- {args.prompt}")
    if os.path.exists(os.path.join(args.prompt, "config.json")):
        args.parser.error(f"{args.prompt} is a model's folder: name it with --model {args.prompt}")
    if "/" in args.prompt:
        from kestrel.hub import is_cached

        if is_cached(args.prompt):
            args.parser.error(
                f"{args.prompt} is a model in the hub's cache: name it with --model {args.prompt}"
            )


def _unknown(first: str, args, behind: list[str]) -> str:
    """The message about the first argument that the command's parser has no use for.

    ``behind`` are the arguments from ``--`` on, of which none is taken for an option.
    """
    name, _, value = first.partition("=")
    options = args.parser._option_string_actions
    if first in behind and name in options:
        return f"{name} stands behind --, where no options are taken: write it before --"
    if first.startswith("-") and first not in behind:
        if name == "--model" and hasattr(args, "model"):
            model = value or args.model or "MODEL"
            return f"unknown option --model: write kestrel {args.command} {model}"
        near = [option for option in options if option.startswith(name)]
        near = " or ".join(near or difflib.get_close_matches(name, options, n=1))
        hint = f"did you mean {near}?" if near else f"see kestrel {args.command} --help"
        return f"unknown option {name}: {hint}"
    taken = getattr(args, "prompt", None) or getattr(args, "model", None)
    kind = "prompt" if args.command == "generate" else "argument"
    if taken is None:
        return f"expected no {kind} here, found {first!r}"
    return f"expected one {kind}, found {taken!r} and {first!r}: quote it if it has spaces"
