"""The Jinja environment in which chat templates run: that of transformers.

Checkpoints come from strangers, so the sandbox is the immutable one, and what templates can reach
is no more than transformers (5.24, ``utils/chat_template_utils.py``, ``_compile_jinja_template``)
gives them: same options, filters, functions and tags, because templates are written against it.
How much text they make is limited, see ``template_limits``.
Imported only when a template is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.utils import Namespace

from kestrel.text.template_limits import BoundedEnvironment, budget, spend

__all__ = ["compile_template", "render_template"]

_DEEPEST = 1000  # levels of JSON: Python's own limit of recursion


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` around what the assistant says: shown as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, not the bare body: what the body sets does not leave it, as in transformers.
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict(...)`` and ``dict.fromkeys(...)`` without the type behind them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace(...)`` whose attributes must not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that namespace(self=...) works
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        Namespace.__setitem__(self, name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace attribute must not begin with an underscore, found {name!r}"
        )


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters of HTML, which are plain text here.
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    width = indent if isinstance(indent, int) else len(indent or "")
    spend(_DEEPEST * width, "the filter tojson")
    return _environment().concat(encoder.iterencode(value))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


@lru_cache(maxsize=1)
def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


@lru_cache(maxsize=32)
def compile_template(source: str) -> jinja2.Template:
    """The compiled template. Raises jinja2.TemplateSyntaxError."""
    with budget():
        return _environment().from_string(source)


def render_template(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The text. Raises whatever the template runs into; SecurityError where it makes too much."""
    with budget():
        return template.render(variables)
