"""``python -m kestrel "Once upon a time"``: the command line, as the script ``kestrel`` runs it."""

from __future__ import annotations

import sys

from kestrel.cli import main

if __name__ == "__main__":
    sys.exit(main())
