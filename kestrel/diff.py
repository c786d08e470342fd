"""Compare a trace with a reference dump, stage by stage, each stage within its own bound.

Both sides are chains of operations that start from the same ids. Let f be the definition of a
stage (`kestrel.stages`), evaluated in float64. Then

    ours - theirs = (ours - f(our inputs)) + (f(our inputs) - f(their inputs))
                  + (f(their inputs) - theirs)

The outer terms are rounding errors of one operation and have bounds from arithmetic
(`kestrel.bounds`); each side is held to its own. The middle one is the difference that came in,
carried through the operation, and is computed. Their sum bounds the difference. So no error is
amplified through the layers by worst cases, a fault is named at the stage where it happens, and
the stages after it are still judged by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kestrel.bounds import KESTREL, REFERENCE, Arithmetic, Bounded
from kestrel.dump import Dump
from kestrel.errors import HeaderError
from kestrel.stages import Geometry, NamedWeights, Stage, rope_lengths, stages_of

if TYPE_CHECKING:
    from kestrel.models.config import DecoderConfig
    from kestrel.models.weights import DecoderWeights
    from kestrel.program.trace import Trace

__all__ = ["Dump", "StageRow", "compare", "compare_trace", "cosine", "first_beyond"]
__all__ += ["max_ulps", "table"]

@dataclass(frozen=True)
class StageRow:
    """One stage of a comparison.

    Attributes:
        stage: Hugging Face name.
        shape: of both arrays.
        max_abs, mean_abs: of the difference.
        cosine: of the two arrays, taken as vectors.
        max_ulps: largest distance in units in the last place of float32.
        bound: what the difference may be at the element where it is largest; None, like the
            next three, when one side lacks a stage that this one reads.
        share: largest over the elements of our distance from the definition, given our inputs,
            divided by its bound.
        their_share: the same of the reference, given its inputs.
        where: index of the element of the larger share.
    """

    stage: str
    shape: tuple[int, ...]
    max_abs: float
    mean_abs: float
    cosine: float
    max_ulps: int
    bound: float | None
    share: float | None
    their_share: float | None
    where: tuple[int, ...] | None

    @property
    def ok(self) -> bool:
        """Both sides within their bounds; finite where there is no bound to hold them to."""
        if self.share is None or self.their_share is None:
            return bool(np.isfinite(self.max_abs))
        return max(self.share, self.their_share) <= 1.0

    @property
    def beyond(self) -> str:
        """Which side left its bound: "", "ours", "the reference" or "both"."""
        ours = self.share is not None and self.share > 1.0
        theirs = self.their_share is not None and self.their_share > 1.0
        return {(0, 0): "", (1, 0): "ours", (0, 1): "the reference", (1, 1): "both"}[ours, theirs]


def compare_trace(
    trace: "Trace",
    reference: "Dump | Trace",
    config: "DecoderConfig",
    weights: "DecoderWeights",
    kv_dtype: type = np.float32,
) -> list[StageRow]:
    """`compare` for a trace of a loaded model and a dump, or a trace of another backend.

    ``kv_dtype`` is the element type of the model's KV cache. Raises HeaderError when the dump is of
    other ids.
    """
    if list(reference.ids) != list(trace.ids):
        raise HeaderError(
            f"the reference is of {len(reference.ids)} ids {_short(reference.ids)}, the trace of "
            f"{len(trace.ids)} ids {_short(trace.ids)}: make the dump from the same prompt"
        )
    ours = replace(KESTREL, cache=None if kv_dtype is np.float32 else kv_dtype)
    if isinstance(reference, Dump):
        theirs, their_arithmetic = reference.stages, REFERENCE
    else:
        theirs, their_arithmetic = reference, ours
    stages = stages_of(Geometry.of(config, weights))
    named = NamedWeights(weights)
    return compare(stages, named, trace.ids, trace, theirs, ours, their_arithmetic)


def _short(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', ...' * (len(ids) > 8)}]"


def compare(
    stages: Iterable[Stage],
    weights: Mapping[str, np.ndarray],
    ids: Sequence[int],
    ours: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    our_arithmetic: Arithmetic = KESTREL,
    their_arithmetic: Arithmetic = REFERENCE,
    decode_from: int | None = None,
) -> list[StageRow]:
    """One row for each stage that both sides have, in the order of the forward pass.

    ``ours`` and ``theirs`` map stage names to arrays with one row for each of ``ids``. A stage is
    bounded when both sides also have the stages that it reads. On both sides the ids came in one
    call, or ``decode_from`` of them did and the others one by one.
    """
    lengths = rope_lengths(len(ids), decode_from)
    start = {"token_ids": np.asarray(ids, np.int64), "rope_lengths": lengths}
    ours, theirs = {**ours, **start}, {**theirs, **start}
    rows = []
    for stage in stages:
        if stage.name not in ours or stage.name not in theirs:
            continue
        a, b = np.asarray(ours[stage.name]), np.asarray(theirs[stage.name])
        if a.shape != b.shape:
            raise HeaderError(
                f"{stage.name}: the reference has shape {list(b.shape)}, ours is {list(a.shape)}: "
                "the dump is of another model or another prompt"
            )
        if all(name in ours and name in theirs for name in stage.inputs):
            mine = stage.evaluate(ours, weights, our_arithmetic)
            other = stage.evaluate(theirs, weights, their_arithmetic)
            rows.append(_bounded_row(stage.name, a, b, mine, other))
        else:
            rows.append(_row(stage.name, a, b))
    return rows


def _bounded_row(
    name: str, a: np.ndarray, b: np.ndarray, mine: Bounded, other: Bounded
) -> StageRow:
    shares = [_shares(np.abs(x - value), bound) for x, (value, bound) in ((a, mine), (b, other))]
    share, their_share = (float(each.max()) for each in shares)
    largest = np.argmax(np.abs(a.astype(np.float64) - b))
    allowed = mine[1] + np.abs(mine[0] - other[0]) + other[1]
    worse = shares[their_share > share]
    where = np.unravel_index(int(np.argmax(worse)), a.shape)
    row = _row(name, a, b)
    return replace(
        row,
        bound=float(allowed.ravel()[largest]),
        share=share,
        their_share=their_share,
        where=tuple(int(index) for index in where),
    )


def _shares(difference: np.ndarray, bound: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(difference == 0.0, 0.0, difference / bound)
    return np.where(np.isnan(share), np.inf, share)


def _row(name: str, a: np.ndarray, b: np.ndarray) -> StageRow:
    difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return StageRow(
        stage=name,
        shape=a.shape,
        max_abs=float(difference.max()),
        mean_abs=float(difference.mean()),
        cosine=cosine(a, b),
        max_ulps=max_ulps(a, b),
        bound=None,
        share=None,
        their_share=None,
        where=None,
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of two arrays taken as vectors, resolved to 1e-16 near 1.

    ``1 - |a/|a| - b/|b||^2 / 2`` in float64: the plain quotient rounds at 1e-16 and so cannot
    tell 1 - 1e-16 from 1; the squared distance of unit vectors can. Two zero vectors give 1, one
    zero vector gives 0.
    """
    a, b = (np.asarray(x, np.float64).ravel() for x in (a, b))
    size_a, size_b = np.linalg.norm(a), np.linalg.norm(b)
    if size_a == 0.0 or size_b == 0.0:
        return float(size_a == size_b)
    apart = a / size_a - b / size_b
    return 1.0 - 0.5 * float(apart @ apart)


def max_ulps(a: np.ndarray, b: np.ndarray) -> int:
    """Largest distance of two arrays in units in the last place: float32 values between, plus 1.

    0 means the same bits up to the sign of zero. float64 input is rounded to float32 first.
    """

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = np.asarray(x, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return int(np.abs(ordered(np.ascontiguousarray(a)) - ordered(np.ascontiguousarray(b))).max())


def first_beyond(rows: Iterable[StageRow]) -> StageRow | None:
    """The first stage, in the order of the forward pass, that is beyond its bound."""
    return next((row for row in rows if not row.ok), None)


def table(rows: Sequence[StageRow]) -> str:
    """The rows as text, one line a stage, with a heading and a closing verdict."""
    width = max([len("stage"), *(len(row.stage) for row in rows)])
    lines = [
        f"{'stage':{width}}  {'shape':>10}  {'max abs':>8}  {'mean abs':>8}  {'1 - cos':>7}"
        f"  {'ulps':>7}  {'bound':>8}  {'share':>5}  {'theirs':>6}"
    ]
    for row in rows:
        shape = "x".join(map(str, row.shape))
        bound = "-" if row.bound is None else f"{row.bound:.2e}"
        share, theirs = ("-" if x is None else f"{x:.2f}" for x in (row.share, row.their_share))
        lines.append(
            f"{row.stage:{width}}  {shape:>10}  {row.max_abs:8.2e}  {row.mean_abs:8.2e}"
            f"  {1 - row.cosine:7.1e}  {row.max_ulps:7d}  {bound:>8}  {share:>5}  {theirs:>6}"
            + (f"  BEYOND: {row.beyond or 'not finite'}" if not row.ok else "")
        )
    worst = first_beyond(rows)
    if worst is None:
        bounded = sum(row.bound is not None for row in rows)
        lines.append(f"{len(rows)} stages, {bounded} of them bounded, none beyond its bound")
    else:
        side = worst.beyond or "not finite"
        lines.append(f"first stage beyond its bound: {worst.stage} ({side})")
    return "\n".join(lines)
