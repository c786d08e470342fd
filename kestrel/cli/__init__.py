"""The command line: one file a command, and the parser that the man page is made from."""

from __future__ import annotations

from kestrel.cli.main import main

__all__ = ["main"]
