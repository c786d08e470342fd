"""The committed man page is the one that the parser gives."""

import pathlib
import re
import shutil
import subprocess

import pytest

import kestrel

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "man" / "kestrel.1"


def test_the_man_page_is_fresh(monkeypatch):
    """Regenerate with: python setup.py build_manpages (SOURCE_DATE_EPOCH sets the page's date)."""
    pytest.importorskip("argparse_manpage", reason="argparse-manpage is not installed")
    from argparse_manpage.manpage import Manpage
    from argparse_manpage.tooling import get_parser
    from build_manpages.build_manpages import get_pyproject_settings, parse_manpages_spec

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")  # the page must not depend on someone's terminal
    spec = parse_manpages_spec(get_pyproject_settings())["man/kestrel.1"]
    # What `setup.py build_manpages` takes from the distribution.
    spec |= {"project_name": "kestrel", "prog": "kestrel", "version": kestrel.__version__}
    parser = get_parser(
        spec["import_type"], spec["import_from"], spec["objname"], spec["objtype"], "kestrel"
    )
    committed = PAGE.read_text(encoding="utf-8")
    page = Manpage(parser, format=spec.get("format", "pretty"), _data=spec)
    # The date is the day on which the page was made; it says nothing about the parser.
    page.date = re.search(r'"(\d{4}\\-\d\d\\-\d\d)"', committed)[1].replace("\\", "")
    assert str(page) == committed, "man/kestrel.1 is stale: run python setup.py build_manpages"


def test_the_man_page_names_every_command_and_option():
    from kestrel.cli.parser import COMMANDS, get_parser

    page = PAGE.read_text(encoding="utf-8").replace("\\-", "-")
    commands = next(action for action in get_parser()._actions if action.dest == "command")
    assert set(commands.choices) == set(COMMANDS)
    for command, parser in commands.choices.items():
        assert f"kestrel {command}" in page
        for option in parser._option_string_actions:
            assert option in page or option in ("-h", "--help")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_formats_the_man_page_without_a_warning():
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", str(PAGE)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "talk with a model" in done.stdout
