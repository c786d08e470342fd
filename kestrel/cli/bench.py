"""``kestrel bench``: how fast a model is as users get it, beside what the machine could do.

The protocol: a prompt of 16 tokens, 32 tokens generated greedily, two warm-up runs and five
measured ones, then as many runs of a 128-token prompt for the prefill alone. No run finds anything
in the cache: each has a first token of its own. The logits behind one answer are hashed, so that a
fast run of wrong kernels shows. A few more runs are profiled, to say where the time goes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kestrel.busy import Clock
from kestrel.cli.bench_figures import Answer, Measured, figures, footprint
from kestrel.cli.bench_profile import Profiler, Split, split
from kestrel.cli.bench_table import table
from kestrel.cli.common import describe_model, load_model, note, print_json
from kestrel.engine.request import Finished
from kestrel.errors import KestrelError, RequestError
from kestrel.integers import counted
from kestrel.roofline import MachineLimits
from kestrel.sampling.params import SamplingParams

if TYPE_CHECKING:
    import argparse

    from kestrel.engine.engine import Engine
    from kestrel.model import Model

__all__ = ["run"]

#: Steps through the vocabulary for ids of prompts: a prime, so that they do not repeat soon.
_STRIDE = 7919

#: Profiled runs of each kind, and seconds for each limit at each of the moments of its measurement.
_PROFILED = 3
_LIMIT_SECONDS = 0.2
_LIMIT_MOMENTS = 3


def run(args: "argparse.Namespace") -> int:
    """Measure and print; 0."""
    reports = []
    for threads in args.threads or [None]:
        with load_model(args, threads=threads) as model:
            needed = max(args.prompt_tokens + args.new_tokens, args.prefill_tokens + 1)
            if needed > model.context_limit:
                raise RequestError(
                    f"bench: the protocol needs a context of {needed} tokens, found "
                    f"{model.context_limit}: lower --prompt-tokens, --new-tokens or "
                    "--prefill-tokens"
                )
            if not args.json:
                note(describe_model(model))
            with _progress(args, model) as step:
                reports.append(figures(args, model, _Bench(args, model, step).measure()))
    first, *others = reports
    for other in others:
        if other["logits_checksum"] != first["logits_checksum"]:
            raise KestrelError(
                f"bench: {other['machine']['threads']} threads gave other logits "
                f"({other['logits_checksum']}) than {first['machine']['threads']} "
                f"({first['logits_checksum']}); kestrel verify says more"
            )
    if args.json:
        print_json({**first, "other_threads": others})
    else:
        print(table(reports))
    return 0


@contextmanager
def _progress(args: "argparse.Namespace", model: "Model") -> Iterator[Callable[[str], None]]:
    """A bar on standard error where that is a terminal; ``step(what)`` begins the next part."""
    from tqdm import tqdm

    rounds = args.warmup + args.runs + min(_PROFILED, args.runs)
    info = model.backend.info
    label = f"bench, {counted(info.threads, 'thread')}"
    total = 1 + 2 * rounds + _LIMIT_MOMENTS
    disable = True if args.json else None  # None: unless it is a terminal
    with tqdm(total=total, desc=label, unit="run", leave=False, disable=disable) as bar:
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            bar.update(int(begun))
            bar.set_postfix_str(what)
            begun = True

        yield step


class _Bench:
    """The measurements of one model with one thread count."""

    def __init__(
        self, args: "argparse.Namespace", model: "Model", step: Callable[[str], None]
    ) -> None:
        self._args = args
        self._model = model
        self._step = step
        self._prompts = 0
        is_native = model.backend.info.name == "cpu"
        self._limits = MachineLimits(model.backend.device) if is_native else None
        self._profiler = Profiler(model) if is_native else None

    def measure(self) -> Measured:
        """Everything, in the order of the protocol; the limits before, between and after."""
        args = self._args
        self._step("checksum")
        clock = Clock()
        checksum = self._checksum(self._prompt(args.prompt_tokens), args.new_tokens)
        self._measure_limits()
        answers = self._answers("decode", args.prompt_tokens, args.new_tokens)
        self._measure_limits()
        prefills = self._answers("prefill", args.prefill_tokens, 1)
        self._measure_limits()
        first, decode = self._profile("decode", args.prompt_tokens, args.new_tokens)
        prefill, _ = self._profile("prefill", args.prefill_tokens, 1)
        splits = {"prefill": prefill, "first_token": first, "decode": decode}
        return Measured(answers, prefills, splits, self._limits, checksum, clock.others())

    def _measure_limits(self) -> None:
        self._step("limits")
        if self._limits:
            self._limits.read(footprint(self._args, self._model), _LIMIT_SECONDS)
            self._limits.arithmetic(_LIMIT_SECONDS)

    def _answers(self, what: str, length: int, new_tokens: int) -> list[Answer]:
        answers = []
        for _ in range(self._args.warmup + self._args.runs):
            self._step(what)
            prompt = self._prompt(length)
            answers.append(_generate(self._model, self._model.engine, prompt, new_tokens)[0])
        return answers[self._args.warmup :]

    def _profile(self, what: str, length: int, new_tokens: int) -> tuple[Split, Split]:
        """Where the time until the first token and after it goes."""
        first = decode = Split()
        for _ in range(min(_PROFILED, self._args.runs)):
            self._step(f"profile of {what}")
            if self._profiler:
                profiler, records = self._profiler, self._profiler.records
                prompt = self._prompt(length)
                answer, _ = _generate(self._model, profiler.engine, prompt, new_tokens)
                steps = len(records) - (new_tokens - 1)  # of the prompt
                first += split(records[:steps], answer.first_token)
                decode += split(records[steps:], answer.decode)
        return first, decode

    def _prompt(self, length: int) -> list[int]:
        """A prompt that differs from all before in its first token."""
        self._prompts += 1
        vocab_size = self._model.config.vocab_size
        return [(self._prompts + i * _STRIDE) % vocab_size for i in range(length)]

    def _checksum(self, ids: list[int], new_tokens: int) -> str:
        """SHA-256 over the float32 logits before each new token, in 16 hexadecimal digits."""
        _, tokens = _generate(self._model, self._model.engine, ids, new_tokens)
        digest = hashlib.sha256()
        session = self._model.session()
        logits = session.prefill(ids)
        for index, token in enumerate(tokens):
            logits = session.decode(tokens[index - 1]) if index else logits
            digest.update(logits.tobytes())
            if logits[token] != logits.max():
                raise KestrelError(
                    f"bench: new token {index} is {token}, but its logit is not the highest: the "
                    "streamed answer and the session disagree"
                )
        return digest.hexdigest()[:16]


def _generate(
    model: "Model", make_engine: "Callable[[], Engine]", ids: list[int], new_tokens: int
) -> tuple[Answer, list[int]]:
    """Generate greedily; the times and the new ids."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    times, tokens = [], []
    started = time.perf_counter()
    engine = make_engine()
    engine.add(ids, params)
    for event in engine.events():
        if isinstance(event, Finished):
            if event.usage.cached_tokens:
                raise KestrelError(
                    f"bench: {event.usage.cached_tokens} prompt tokens were in the cache already: "
                    f"a vocabulary of {model.config.vocab_size} is too small for so many runs"
                )
        else:
            times.append(time.perf_counter())
            tokens.append(event.id)
    return Answer(times[0] - started, times[-1] - times[0]), tokens
