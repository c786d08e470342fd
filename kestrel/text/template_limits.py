"""How much text a chat template may make: so that a stranger's cannot fill the memory.

Each step that can make much of little (``"a" * 10**10``, ``x ~ x`` in a loop, ``center``, ``join``)
says beforehand, or at most piece by piece, how many characters it makes; a template may make
``MAX_CHARACTERS`` in all. Lists, the numbers of a ``range`` and large integers count too. Not
bounded are the time that a template takes (Ctrl-C ends it) and lists of many small parts that are
not written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["MAX_CHARACTERS", "BoundedEnvironment", "budget", "spend"]

#: Of all texts that a template makes on its way, in one rendering; far above any prompt.
MAX_CHARACTERS = 64 * 2**20

#: Characters that each number of a ``range`` counts for: the room that it takes in a list.
_NUMBER = 16

_spent: ContextVar[int] = ContextVar("spent", default=0)
_PRINTF_WIDTH = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\d*)(?:\.(\d*))?")
_FORMAT_SPEC = re.compile(r"\{[^{}]*:([^{}]*)")


@contextmanager
def budget() -> Iterator[None]:
    """One rendering, or compilation: what was spent before does not count."""
    token = _spent.set(0)
    try:
        yield
    finally:
        _spent.reset(token)


def spend(characters: int, step: str) -> None:
    """Raises SecurityError, which names the ``step``, where the template would make too many."""
    total = _spent.get() + max(characters, 0)
    if total > MAX_CHARACTERS:
        raise SecurityError(
            f"its texts, lists, ranges and large numbers may take {MAX_CHARACTERS:,} characters in "
            f"all, and {step} goes beyond that"
        )
    _spent.set(total)


class _Generator(CodeGenerator):
    """Compiles ``a ~ b`` to a method of the environment; every other operator has a hook."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, map(environment.finalize, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of transformers, with a limit on the text that is made."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_measured, **options)
        for name, cost in _FILTERS.items():
            self.filters[name] = _bounded(name, self.filters[name], cost)
        del self.globals["lipsum"]  # makes random text, however much is asked for

    def concat(self, pieces: Iterable[str]) -> str:
        """What a template, a macro or a ``{% set %}`` block has written."""
        kept = []
        for piece in pieces:
            spend(len(piece) + 1, "the text written")
            kept.append(piece)
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        spend(_BINARY[operator](left, right), f"the operator {operator}")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # format() comes wrapped by the sandbox
        cost = _METHODS.get(getattr(method, "__name__", ""))
        if cost is not None and isinstance(getattr(method, "__self__", None), (str, int)):
            # An iterator can be read once only: by the count, or by the method.
            args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
            spend(cost(method.__self__, *args, *kwargs.values()), f"{method.__name__}()")
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, range):
            spend(len(result) * _NUMBER, "range()")
        return result


def _measured(value: Any) -> Any:
    """What ``{{ value }}`` is about to make a text of."""
    if not isinstance(value, str):
        spend(_characters(value), "a value written")
    return value


def _characters(value: Any) -> int:
    """At least how long ``str(value)`` is; parts that stand in it many times count many times."""
    total, waiting = 0, [value]
    while waiting and total <= MAX_CHARACTERS:
        each = waiting.pop()
        total += 2
        if isinstance(each, Namespace):
            each = object.__getattribute__(each, "_Namespace__attrs")
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, int):
            total += each.bit_length() // 3
        elif isinstance(each, Mapping):
            waiting.extend(each.keys())
            waiting.extend(each.values())
        elif isinstance(each, Sized) and isinstance(each, Iterable):
            waiting.extend(each)
    return total


def _numbers(values: Iterable[Any]) -> int:
    """The sum of the integers among arguments: widths, counts and the like."""
    return sum(abs(value) for value in values if isinstance(value, int))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _times(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        # What it takes to compute it, which grows faster than its digits.
        return left.bit_length() * right.bit_length() // 1024
    count, repeated = (left, right) if isinstance(left, int) else (right, left)
    return _size(repeated) * max(count, 0) if isinstance(count, int) else 0


def _power(left: Any, right: Any) -> int:
    whole = isinstance(left, int) and isinstance(right, int)
    return (left.bit_length() * right) ** 2 // 1024 if whole and right > 0 else 0


def _printf(text: Any, *values: Any) -> int:
    if not isinstance(text, str):
        return 0
    widths = sum(int(n) for pair in _PRINTF_WIDTH.findall(text) for n in pair if n)
    given = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    asked = _numbers(given) if "*" in text else 0
    return len(text) + widths + asked + text.count("%") * _characters(values)


def _format(text: str, *values: Any) -> int:
    widths = sum(int(n) for spec in _FORMAT_SPEC.findall(text) for n in re.findall(r"\d+", spec))
    each = _characters(values) + _numbers(values)
    return len(text) + widths + text.count("{") * each


def _replace(text: Any, old: Any = "", new: Any = "", *_: Any) -> int:
    known = isinstance(text, str) and isinstance(old, str)
    found = text.count(old) if known else _characters(text)
    return _characters(text) + found * _characters(new)


def _join(parts: Any, separator: Any = "", *_: Any) -> int:
    return _characters(parts) + _size(parts) * _characters(separator)


def _of_lines(text: Any, width: Any = 4, *_: Any) -> int:
    size = width if isinstance(width, int) else _size(width)
    return _characters(text) + (text.count("\n") + 1 if isinstance(text, str) else 1) * size


def _spread(value: Any, *more: Any) -> int:
    """Of filters that put something around words or characters: ``&#34;``, links, line ends."""
    return _characters(value) * (10 + _characters(more))


def _width(value: Any, *widths: Any) -> int:
    return _numbers(widths)


_BINARY: Mapping[str, Callable[[Any, Any], int]] = {
    "+": lambda left, right: _size(left) + _size(right), "*": _times, "**": _power, "%": _printf,
}  # fmt: skip

#: Methods of str and int by name: the cost of a call, given the object and the arguments.
_METHODS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), _width),
    "expandtabs": lambda text, size=8: text.count("\t") * size,
    "format": _format, "format_map": _format,
    "join": lambda separator, parts=(): _join(parts, separator),
    "replace": _replace,
    "translate": lambda text, table: len(text) * _characters(table),
}  # fmt: skip

_FILTERS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("batch", "center", "round", "slice"), _width),
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode", "urlize"), _spread),
    **dict.fromkeys(("wordwrap", "xmlattr"), _spread),
    **dict.fromkeys(("pprint", "string", "sum"), lambda value, *_: _characters(value)),
    "format": _printf, "indent": _of_lines, "join": _join, "replace": _replace,
}  # fmt: skip


def _bounded(
    name: str, function: Callable[..., Any], cost: Callable[..., int]
) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        # An iterator can be read once only: by the count, or by the filter.
        args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
        spend(cost(*args[first:], *kwargs.values()), f"the filter {name}")
        return function(*args, **kwargs)

    return bounded
