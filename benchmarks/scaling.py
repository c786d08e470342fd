#!/usr/bin/env python3
"""How the cost of a step grows with context, prompt and batch: the README's plot.

    python benchmarks/scaling.py                          # writes benchmarks/scaling.svg
    python benchmarks/scaling.py --model FOLDER -o x.svg

Decode after 16 to 8,160 tokens of context, prefill of 16 to 4,096 tokens, decode of 1 to 32
sequences at once, each beside the least time that the machine needs for it: to read every weight
and cached key once, or for the float32 multiply-adds, whichever takes longer. By default on the
shape of SmolLM2-135M in BF16 with random weights. The figures go to standard output, each with a
checksum of the logits, for a batch of its tokens. Development only: needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(_ROOT / "tests"), str(_ROOT)]

from figures import Work, digest  # noqa: E402
from machine import Clock  # noqa: E402
from models import prompt, step_flops, touch_cache, write_model  # noqa: E402

import kestrel  # noqa: E402
from kestrel.cache.paged_cache import bytes_per_token  # noqa: E402
from kestrel.processors import processor_name  # noqa: E402

STEPS = 24
CONTEXTS = (16, 64, 256, 512, 1024, 2048, 4096, 8160)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT = 16  # of a sequence in a batch
_RUNS, _SECONDS = 5, 4.0  # of one prefill: that many runs, fewer where they take longer

#: Read well on white and on dark paper, which shows through.
_INK, _MEASURED, _LIMIT = "#7d8590", "#2f81f7", "#d9822b"


@dataclass
class Curve:
    """One panel: ``x`` tokens or sequences, milliseconds measured, and the machine's limit."""

    title: str
    axis: str
    x: list[int] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)

    def add(self, x: int, seconds: float, work: Work, checksum: str) -> None:
        """A point; the limit is measured again, and the best kept."""
        work.limit(more=True)
        self.x.append(x)
        self.measured.append(1e3 * seconds)
        self.works.append(work)
        self.checksums.append(checksum)

    @property
    def limits(self) -> list[float]:
        """Milliseconds that the machine needs, as known at the end of the run."""
        return [1e3 * work.limit().seconds for work in self.works]

    def lines(self) -> Iterator[str]:
        """The panel in words."""
        yield self.title
        for x, taken, limit, checksum in zip(self.x, self.measured, self.limits, self.checksums):
            share = f"limit {limit:9.3f} ms, {limit / taken:4.0%}"
            yield f"  {x:5,} {self.axis:20} {taken:9.3f} ms, {share}  {checksum}"


class Scaling:
    """The three measurements of one model."""

    def __init__(self, model: kestrel.Model) -> None:
        touch_cache(model)
        self._model, self._config = model, model.config
        self._kv_bytes = bytes_per_token(model.config, model.cache.layer(0).dtype)
        self._weights = model.program.weight_bytes()

    def context(self) -> Curve:
        """A decode step after more and more tokens: keys and values are read beside the weights."""
        curve = Curve("a decode step", "tokens of context")
        room = self._model.context_limit - STEPS
        contexts = [length for length in CONTEXTS if length <= room]
        ids = self._prompt(contexts[-1], first=10)
        tokens = prompt(STEPS, self._config.vocab_size, seed=1)
        session = self._model.session()
        for length in contexts:
            session.prefill(ids[len(session) : length])
            logits: list = []
            taken = timed(logits.append(session.decode(token)) for token in tokens)
            session.truncate(length)
            nbytes = self._weights + self._kv_bytes * (length + STEPS / 2)
            flops = step_flops(self._config, 1, length + STEPS // 2)
            work = self._work(nbytes, flops)
            curve.add(length, statistics.median(taken), work, digest(logits))
        return curve

    def prefill(self) -> Curve:
        """A prompt in one go."""
        curve = Curve("prefill of a prompt", "tokens of prompt")
        firsts = count(12)
        for length in (n for n in LENGTHS if n <= self._model.context_limit):
            checksum = digest([self._model.session().prefill(self._prompt(length, first=11))])
            taken: list[float] = []
            while len(taken) < _RUNS and sum(taken) < _SECONDS:
                session, ids = self._model.session(), self._prompt(length, next(firsts))
                taken += timed(session.prefill(each) for each in [ids])
            work = self._work(self._weights, step_flops(self._config, length))
            curve.add(length, statistics.median(taken), work, checksum)
        return curve

    def batch(self) -> Curve:
        """A decode step of several sequences: the weights are read once for all of them."""
        curve = Curve("a decode step of several sequences", "sequences at once")
        firsts = count(12 + _RUNS * len(LENGTHS))
        params = kestrel.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=STEPS + 1)
        for sequences in BATCHES:
            engine, tokens = self._model.engine(), []
            for _ in range(sequences):
                engine.add(self._prompt(PROMPT, next(firsts)), params)
            engine.step()  # all prompts
            taken = timed(tokens.extend(engine.step()) for _ in range(STEPS))
            ids = [event.id for event in tokens if hasattr(event, "id")]
            context = PROMPT + STEPS // 2
            nbytes = self._weights + self._kv_bytes * context * sequences
            flops = sequences * step_flops(self._config, 1, context)
            work = self._work(nbytes, flops)
            curve.add(sequences, statistics.median(taken), work, digest([repr(ids)]))
        return curve

    def _prompt(self, length: int, first: int) -> list[int]:
        # With a first id that no other prompt has, nothing of it is found in the cache.
        return [first, *prompt(length - 1, self._config.vocab_size)]

    def _work(self, nbytes: float, flops: float) -> Work:
        info = self._model.backend.info
        return Work(threads=info.threads, isa=info.isa, nbytes=nbytes, flops=flops)


def timed(calls: Iterable[object]) -> list[float]:
    """Seconds that each item of a generator took."""
    taken, before = [], time.perf_counter()
    for _ in calls:
        now = time.perf_counter()
        taken.append(now - before)
        before = now
    return taken


def draw(curves: list[Curve], footnote: str, target: Path) -> None:
    """Write the plot; the same figures give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    style = {name: _INK for name in ("text.color", "axes.labelcolor", "axes.edgecolor")}
    style |= {"xtick.color": _INK, "ytick.color": _INK, "font.size": 9, "axes.titlesize": 10}
    # Text stays text: smaller, and in the reader's own font.
    style |= {"svg.fonttype": "none", "svg.hashsalt": "kestrel", "font.sans-serif": "DejaVu Sans"}
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(1, len(curves), figsize=(9.6, 3.0))
        for panel, curve in zip(panels, curves):
            panel.plot(curve.x, curve.measured, color=_MEASURED, marker="o", markersize=3.5)
            panel.plot(curve.x, curve.limits, color=_LIMIT, linestyle="--", linewidth=1.2)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_title(curve.title)
            panel.set_xlabel(curve.axis)
            panel.set_xticks(curve.x if curve.x[-1] < 100 else [4**e for e in range(2, 7)])
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            panel.xaxis.set_minor_locator(NullLocator())
            low, high = min(curve.limits), max(curve.measured)
            steps = (1, 2, 5) if high < 50 * low else (1,)
            panel.set_yticks([step * 10**e for e in range(-3, 7) for step in steps])
            panel.set_ylim(low / 1.6, high * 1.6)
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.grid(color=_INK, alpha=0.25, linewidth=0.5)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("milliseconds")
        panels[0].legend(["measured", "limit of the machine"], frameon=False, loc="upper left")
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        figure.text(0.01, 0.015, footnote, fontsize=8)
        metadata = {"Date": None, "Creator": None}
        figure.savefig(target, format="svg", transparent=True, metadata=metadata)
        pyplot.close(figure)


def default_model(scratch: Path) -> Path:
    """The shape of SmolLM2-135M, random weights, with room for the longest context."""
    folder = write_model(scratch / "135M-BF16", "135M", "BF16")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 8192
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a folder; default: random weights")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=_ROOT / "benchmarks" / "scaling.svg")
    args = parser.parse_args()
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="kestrel-scaling-") as scratch:
        folder = args.model or default_model(Path(scratch))
        limits = kestrel.Limits(max_seqs=max(BATCHES))
        with kestrel.load(folder, threads=args.threads, limits=limits) as model:
            scaling, info = Scaling(model), model.backend.info
            curves = [scaling.context(), scaling.prefill(), scaling.batch()]
    others = clock.others()
    footnote = f"{folder.name} on {processor_name()}, {info.threads} threads, {info.isa}; medians"
    if others is not None:
        footnote += f"; other processes kept {others:.2f} processors busy"
    print("\n".join(line for curve in curves for line in curve.lines()))
    print(footnote)
    draw(curves, footnote, args.output)


if __name__ == "__main__":
    main()
