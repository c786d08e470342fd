"""``kestrel verify``: the same bits however a model is run?

One text is run on every instruction set that this processor supports, with several thread counts,
with prefill chunks of 1, 7, 64 and whole, in a batch of 8 with other prompts, and once more with
its prefix found in the cache. Each run is hashed over the logits after the prompt and after each
decoded token; all hashes must be one.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.cache.sequence import Sequence
from kestrel.cli.common import check_isa, note, print_json
from kestrel.errors import RequestError, UnsupportedIsaError
from kestrel.runtime import native_ops, settings

if TYPE_CHECKING:
    import argparse

    from kestrel.model import Model

__all__ = ["Case", "run"]

#: Long enough for chunks of 64 and for several cache blocks, once encoded.
_TEXT = (
    "Once upon a time there lived in a small house at the edge of the forest a poor woodcutter and "
    "his wife, who had seven children. The youngest was so small that they called him Thumbling; "
    "but he was wise, and when he heard what his parents said in the night he rose, and went out, "
    "and filled his pockets with white pebbles from the brook."
)
_LENGTH = 70
_CHUNKS = (1, 7, 64, None)
_BATCH = 8
_SHORTEST = BLOCK_SIZE + 1  # a block that a warm run finds, and a token that it computes


@dataclass(frozen=True)
class Case:
    """One way to run the text. ``chunk`` None means the whole prompt in one step."""

    label: str
    chunk: int | None = None
    batch: int = 1
    warm: bool = False


CASES = (
    *(Case("whole" if chunk is None else f"chunk {chunk}", chunk) for chunk in _CHUNKS),
    Case(f"batch {_BATCH}", batch=_BATCH),
    Case("warm", warm=True),
)


def run(args: "argparse.Namespace") -> int:
    """Run the matrix and print it; 0 when every hash is the same, else 1."""
    from tqdm import tqdm

    from kestrel.model import load
    from kestrel.models.limits import Limits

    sets = _instruction_sets(args.isa)
    options = {"backend": "cpu", "limits": Limits(max_seqs=_BATCH), "mmap": not args.no_mmap}
    with load(args.model, refresh=args.refresh, **options) as model:
        ids = _ids(args, model)
        threads = sorted({1, 2, args.threads or model.backend.info.threads})
        # What every run is compared with: each prompt of the batch by itself, on the best set.
        expected = [
            _hashes(model, [prompt], args.new_tokens, Case("alone"))[0] for prompt in _prompts(ids)
        ]
        logits = model.session().prefill(ids)
    with load(args.model, kv_dtype="float16", **options) as model:
        float16_price = float(numpy.abs(model.session().prefill(ids) - logits).max())
    rows: list[dict[str, object]] = []
    total = len(sets) * len(threads) * len(CASES)
    with tqdm(total=total, desc="verify", unit="run", leave=False, disable=None) as bar:
        for isa, count in itertools.product(sets, threads):
            with load(args.model, isa=isa, threads=count, **options) as model:
                for case in CASES:
                    prompts = _prompts(ids)[: case.batch]
                    found = _hashes(model, prompts, args.new_tokens, case)
                    ok = found == expected[: case.batch]
                    rows.append({"isa": isa, "threads": count, "case": case.label,
                                 "hash": found[0], "ok": ok})  # fmt: skip
                    bar.update()
    ok = all(row["ok"] for row in rows)
    if args.json:
        print_json({"ok": ok, "prompt_tokens": len(ids), "new_tokens": args.new_tokens,
                    "hash": expected[0], "runs": rows,
                    "float16_cache_max_difference": float16_price})  # fmt: skip
    else:
        note(f"{len(ids)} prompt tokens, {args.new_tokens} decoded, cache float32")
        print(_table(rows, expected[0]))
        print(f"a float16 cache moves the logits after the prompt by up to {float16_price:.2g}")
    return 0 if ok else 1


def _instruction_sets(wanted: list[str] | None) -> list[str]:
    """The sets to run. Raises RequestError for an unknown one, UnsupportedIsaError for one that
    this machine cannot use.
    """
    for name in wanted or (None,):
        check_isa(name)
    usable = native_ops().isas()
    ceiling = settings().isa
    if ceiling in usable:
        usable = usable[: usable.index(ceiling) + 1]
    for name in wanted or ():
        if name not in usable:
            raise UnsupportedIsaError(
                f"--isa: expected one of {', '.join(usable)} (what processor, build and "
                f"KESTREL_ISA allow, see kestrel devices), found {name!r}"
            )
    return wanted or usable


def _ids(args: "argparse.Namespace", model: "Model") -> list[int]:
    """The prompt's ids; the built-in text is cut to what the context allows."""
    room = model.context_limit - args.new_tokens
    if room < _SHORTEST:
        raise RequestError(
            f"--new-tokens: expected room for a prompt of at least {_SHORTEST} tokens within the "
            f"context limit of {model.context_limit}, found {args.new_tokens} new tokens"
        )
    if args.ids is None and args.prompt is None:
        ids = model.encode(_TEXT)[: min(_LENGTH, room)]
    else:
        ids = args.ids or model.encode(args.prompt)
    if not _SHORTEST <= len(ids) <= room:
        raise RequestError(
            f"verify: expected a prompt of {_SHORTEST} to {room} tokens (context limit "
            f"{model.context_limit}, {args.new_tokens} new tokens), found {len(ids)}"
        )
    return ids


def _prompts(ids: list[int]) -> list[list[int]]:
    """The prompt, and shorter ones to stand beside it in a batch."""
    return [ids, *(ids[n : n + 3 * n] for n in range(1, _BATCH))]


def _hashes(model: "Model", prompts: list[list[int]], new_tokens: int, case: Case) -> list[str]:
    """Run the prompts together and continue each greedily; for each a hash of its logits."""
    runner = model.runner
    sequences = [Sequence(model.pool, ids) for ids in prompts]
    digests = [hashlib.sha256() for _ in prompts]
    targets = [len(ids) + new_tokens for ids in prompts]
    try:
        for sequence, target in zip(sequences, targets):
            if case.warm:
                assert sequence.adopt_prefix() > 0, "an earlier case left its blocks findable"
            left = target - sequence.computed
            sequence.reserve(sequence.ahead(left, case.chunk or runner.max_tokens))
        while True:
            rows, owners, used = [], [], 0
            for index, sequence in enumerate(sequences):
                left = len(sequence.tokens) - sequence.computed
                length = min(left, case.chunk or left, runner.max_tokens - used)
                length = sequence.fitting(length)
                if length > 0:
                    sequence.reserve(length)
                    rows.append(
                        (sequence, sequence.computed, length, "last" if length == left else "none")
                    )
                    owners += [index] * (length == left)
                    used += length
            if not rows:
                break
            with runner.turn:
                runner.run(rows)
                for sequence, _, length, _ in rows:
                    sequence.advance(length)
                for row, index in enumerate(owners):
                    logits = runner.logits(row)
                    digests[index].update(logits.tobytes())
                    if len(sequences[index].tokens) < targets[index]:
                        sequences[index].append(int(numpy.argmax(logits)))
    finally:
        for sequence in sequences:
            sequence.release()
    return [digest.hexdigest()[:12] for digest in digests]


def _table(rows: list[dict[str, object]], expected: str) -> str:
    labels = [case.label for case in CASES]
    lines = [f"{'isa':10} {'threads':>7}  " + " ".join(f"{label:>12}" for label in labels)]
    for start in range(0, len(rows), len(labels)):
        row = rows[start : start + len(labels)]
        cells = (cell["hash"] if cell["ok"] else f"!{cell['hash'][:11]}" for cell in row)
        lines.append(
            f"{row[0]['isa']:10} {row[0]['threads']:7}  "
            + " ".join(f"{cell:>12}" for cell in cells)
        )
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        lines.append(f"DIFFERS: {row['isa']}, threads {row['threads']}, {row['case']}")
    lines.append(
        f"{len(wrong)} of {len(rows)} runs differ from {expected}" if wrong
        else f"ok: {len(rows)} runs, one hash: {expected}"
    )  # fmt: skip
    return "\n".join(lines)
