"""The protocol, run on all sides by turns, and Kestrel's share of what the machine can do.

A turn is, on each side after the other: a prompt of 16 tokens and 32 cached steps after it, a
prompt of 128, a prompt of 512 and 32 steps, and on Kestrel 8 sequences at once. Before each of them
comes a short one that is not timed, since the caches still hold another side's weights.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from figures import Work
from machine import Clock
from models import prompt, step_flops
from prepare import Unsupported, model_folder, write_gguf

from kestrel.cache.paged_cache import bytes_per_token
from kestrel.checkpoint.checkpoint import Checkpoint
from kestrel.dtypes import Dtype
from kestrel.models import understand

__all__ = ["KESTREL", "MEASURES", "NAMES", "Comparison", "compare"]

KESTREL = "Kestrel"
#: The sides, as sides.py knows them.
NAMES = (KESTREL, "llama.cpp", "transformers", "OpenVINO")

SHORT, MIDDLE, LONG, STEPS, BATCH = 16, 128, 512, 32, 8
WARM_UPS = 1

#: Measure -> how the table calls it.
MEASURES = {
    "decode": f"decode after {SHORT}, tokens/s",
    "decode_long": f"decode after {LONG}, tokens/s",
    "batch": f"decode of {BATCH} at once, tokens/s",
    "first": f"first token of {SHORT}, ms",
    "prefill": f"prefill of {MIDDLE}, tokens/s",
    "prefill_long": f"prefill of {LONG}, tokens/s",
}


@dataclass
class Comparison:
    """What one model in one dtype gave.

    Attributes:
        values: side -> measure -> a figure of each run.
        shares: measure -> the median of Kestrel's shares of the limit, measured after each run.
        same: side -> share of the tokens that are those of Kestrel.
        facts: side -> what it says of itself.
        skipped: side -> why it did not take part.
        checksum: of Kestrel's logits.
        others: processors that other processes kept busy; None where nobody tells.
    """

    model: str
    dtype: str
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    same: dict[str, float] = field(default_factory=dict)
    facts: dict[str, dict] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    checksum: str = ""
    others: float | None = None

    def median(self, side: str, measure: str) -> float | None:
        """The median of the runs; None where it was not measured."""
        values = self.values.get(side, {}).get(measure)
        return statistics.median(values) if values else None


class Process:
    """A side's process, see sides.py. Raises Unsupported where its packages are not installed."""

    def __init__(self, python: str, name: str, path: Path, dtype: str, threads: int) -> None:
        server = Path(__file__).with_name("sides.py")
        count = str(threads)
        self._process = subprocess.Popen(
            [python, str(server), name, str(path), dtype, count],
            env=os.environ | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()
        if "missing" in self.facts:
            self.__exit__(None, None, None)
            raise Unsupported(f"not installed for {python} ({self.facts['missing']})")

    def ask(self, kind: str, **arguments: object) -> object:
        """The answer to one job."""
        self._process.stdin.write(json.dumps({"kind": kind, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._process.args)} ended: see its message above")
        return json.loads(line)


def compare(
    model: str, dtype: str, pythons: dict[str, str], threads: int, runs: int, scratch: Path
) -> Comparison:
    """Run the protocol; ``pythons`` says which interpreter runs a side, by default this one.

    Raises Unsupported where the model has no weights of ``dtype``.
    """
    folder = model_folder(model, dtype, scratch)
    found, sides, clock = Comparison(Path(model).name, dtype), {}, Clock()
    config = understand(Checkpoint(folder))[0]
    try:
        for name in NAMES:
            try:
                path = folder
                if name == "llama.cpp":
                    path = write_gguf(folder, dtype, scratch / "model.gguf")
                python = pythons.get(name, sys.executable)
                sides[name] = Process(python, name, path, dtype, threads)
                found.facts[name] = sides[name].facts
            except Unsupported as reason:
                found.skipped[name] = str(reason)
        _take_turns(found, sides, config, runs)
    finally:
        for side in sides.values():
            side.__exit__(None, None, None)
    # Only now: the time of a process counts as ours when it has ended.
    found.others = clock.others()
    return found


def _take_turns(found: Comparison, sides: dict[str, Process], config, runs: int) -> None:
    vocab, room = config.vocab_size, config.max_position_embeddings
    prompts = _Prompts(vocab)
    checksum = {"ids": prompt(SHORT, vocab, seed=1), "new_tokens": STEPS}
    found.checksum = sides[KESTREL].ask("checksum", **checksum)
    found.values = {name: {measure: [] for measure in MEASURES} for name in sides}
    shares: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    equal, total = dict.fromkeys(sides, 0), 0
    for turn in range(WARM_UPS + runs):
        measured: dict[str, dict[str, float]] = {name: {} for name in sides}
        tokens: dict[str, list[int]] = {name: [] for name in sides}
        for length, steps in ((SHORT, STEPS), (MIDDLE, 0), (LONG, STEPS)):
            if length + steps + 1 > room:
                continue
            warm, ids = prompts.next(SHORT), prompts.next(length)
            for name, side in sides.items():
                side.ask("generate", ids=warm, new_tokens=2)
                answer = side.ask("generate", ids=ids, new_tokens=steps)
                tokens[name] += answer["tokens"]
                figures = _figures(length, steps, answer)
                measured[name] |= figures
                if name == KESTREL and turn >= WARM_UPS:
                    for each, figure in figures.items():
                        shares[each].append(_share(each, figure, found, config))
        several = [prompts.next(SHORT) for _ in range(BATCH)]
        sides[KESTREL].ask("generate", ids=prompts.next(SHORT), new_tokens=2)
        seconds = sides[KESTREL].ask("batch", prompts=several, new_tokens=STEPS)["steps"]
        rate = measured[KESTREL]["batch"] = BATCH * STEPS / seconds
        if turn < WARM_UPS:
            continue
        shares["batch"].append(_share("batch", rate, found, config))
        total += len(tokens[KESTREL])
        for name in sides:
            equal[name] += sum(a == b for a, b in zip(tokens[name], tokens[KESTREL]))
            for measure, figure in measured[name].items():
                found.values[name][measure].append(figure)
    found.shares = {measure: statistics.median(each) for measure, each in shares.items() if each}
    found.same = {name: equal[name] / total for name in sides}
    again = sides[KESTREL].ask("checksum", **checksum)
    if again != found.checksum:
        raise SystemExit(f"Kestrel's logits: checksum {found.checksum} first, {again} at the end")


def _figures(length: int, steps: int, answer: dict) -> dict[str, float]:
    """What one answer says, by measure."""
    rate = length / answer["prefill"]
    if length == MIDDLE:
        return {"prefill": rate}
    decode = steps / answer["steps"]
    if length == LONG:
        return {"prefill_long": rate, "decode_long": decode}
    return {"first": 1e3 * answer["prefill"], "decode": decode}


class _Prompts:
    """Prompts of which no two begin alike, so that no cache of prefixes helps."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._made = vocab_size, 0

    def next(self, length: int) -> list[int]:
        """Ids of the length; they leave the first ten of the vocabulary out."""
        ids = prompt(length, self._vocab_size)
        ids[0] = 10 + self._made % (self._vocab_size - 10)
        self._made += 1
        return ids


def _share(measure: str, figure: float, found: Comparison, config) -> float:
    """Of what the machine can do at this moment: a minute later it may be half as much."""
    limit = _work(measure, found.facts[KESTREL], config).limit_now()
    return limit.seconds / (figure / 1e3 if measure == "first" else _counted(measure) / figure)


def _counted(measure: str) -> int:
    """Tokens that one run of the measure counts."""
    lengths = {"prefill": MIDDLE, "prefill_long": LONG, "batch": BATCH * STEPS}
    return lengths.get(measure, STEPS)


def _work(measure: str, facts: dict, config) -> Work:
    """What one run has to do."""
    weights, machine = facts["weight_bytes"], {"threads": facts["threads"], "isa": facts["isa"]}
    if measure in ("first", "prefill", "prefill_long"):
        length = SHORT if measure == "first" else _counted(measure)
        return Work(nbytes=weights, flops=step_flops(config, length), **machine)
    context, sequences = LONG if measure == "decode_long" else SHORT, 1
    if measure == "batch":
        sequences = BATCH
    read = bytes_per_token(config, Dtype.F32) * (context + STEPS / 2) * sequences
    flops = sequences * step_flops(config, STEPS, context, logit_rows=STEPS)
    nbytes = weights + read
    return Work(nbytes=nbytes * STEPS, flops=flops, footprint=nbytes, **machine)
