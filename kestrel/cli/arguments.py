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
        args.parser.error(_unknown(unknown, args))
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


def _unknown(unknown: list[str], args) -> str:
    """The message about arguments that the command's parser has no use for."""
    first = unknown[0]
    if first.startswith("-"):
        name = first.partition("=")[0]
        near = difflib.get_close_matches(name, args.parser._option_string_actions, n=1)
        hint = f"did you mean {near[0]}?" if near else f"see kestrel {args.command} --help"
        return f"unknown option {name}: {hint}"
    taken = getattr(args, "prompt", None) or getattr(args, "model", None)
    kind = "prompt" if args.command == "generate" else "argument"
    if taken is None:
        return f"expected no {kind} here, found {first!r}"
    return f"expected one {kind}, found {taken!r} and {first!r}: quote it if it has spaces"
