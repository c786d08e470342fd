"""What ``kestrel bench --json`` prints: figures from the times that were measured."""

from __future__ import annotations

import platform
import statistics
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from kestrel.processors import processor_name
from kestrel.program.work import Work, step_work

if TYPE_CHECKING:
    import argparse

    from kestrel.cli.bench_profile import Split
    from kestrel.model import Model
    from kestrel.roofline import MachineLimits

__all__ = ["Answer", "Measured", "figures", "footprint"]


@dataclass(frozen=True)
class Answer:
    """Seconds until the first token, and from it until the last."""

    first_token: float
    decode: float


@dataclass(frozen=True)
class Measured:
    """Of one model with one thread count.

    Attributes:
        answers: the measured runs of the whole protocol.
        prefills: those of the long prompt, with one new token each.
        splits: ``prefill``, ``first_token`` and ``decode``, of the profiled runs.
        limits: None for a backend that is not of this machine's kernels; the splits are then empty.
        checksum: of the logits.
        others: processors that other processes kept busy meanwhile; None where nobody tells.
    """

    answers: list[Answer]
    prefills: list[Answer]
    splits: "dict[str, Split]"
    limits: "MachineLimits | None"
    checksum: str
    others: float | None


def footprint(args: "argparse.Namespace", model: "Model") -> int:
    """Bytes that the last decode step reads: what the read limit is measured over."""
    return step_work(model.program, 1, args.prompt_tokens + args.new_tokens - 2).nbytes


def figures(args: "argparse.Namespace", model: "Model", measured: Measured) -> dict[str, object]:
    """The report; every rate is a spread over the measured runs: median, min and max."""
    info, weight_bytes = model.backend.info, model.program.weight_bytes()
    first = [answer.first_token for answer in measured.answers]
    long = [answer.first_token for answer in measured.prefills]
    decode = [answer.decode for answer in measured.answers]
    steps = args.new_tokens - 1  # the first token comes from the prefill
    decode_rate = _rates(steps, decode)
    decode_work = [step_work(model.program, 1, args.prompt_tokens + i) for i in range(steps)]
    phases = {
        "prefill": (long, args.prefill_tokens, _prefill_work(model, args.prefill_tokens)),
        "first_token": (first, args.prompt_tokens, _prefill_work(model, args.prompt_tokens)),
        "decode": (decode, steps, reduce(add, decode_work)),
    }
    size = footprint(args, model)
    return {
        "model": str(model.folder),
        "machine": {
            "processor": processor_name(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "backend": info.name,
            "isa": info.isa,
            "threads": info.threads,
            "kv_dtype": args.kv_dtype,
        },
        "protocol": {
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens,
            "prefill_tokens": args.prefill_tokens,
            "warmup": args.warmup,
            "runs": args.runs,
        },
        "load_seconds": model.load_seconds,
        "first_token_ms": _spread([seconds * 1e3 for seconds in first]),
        "prefill_tokens_per_second": _rates(args.prompt_tokens, first),
        "long_prefill_tokens_per_second": _rates(args.prefill_tokens, long),
        "decode_tokens_per_second": decode_rate,
        "weight_bytes_per_step": weight_bytes,
        "decode_weight_gigabytes_per_second": weight_bytes * decode_rate["median"] / 1e9,
        "limits": None if measured.limits is None else _limits(measured.limits, size),
        "phases": {
            name: _phase(seconds, tokens, work, size, measured, name)
            for name, (seconds, tokens, work) in phases.items()
        },
        "logits_checksum": measured.checksum,
        "processors_busy_with_others": measured.others,
    }


def _limits(limits: "MachineLimits", size: int) -> dict[str, float]:
    return {
        "read_bytes": size,
        "read_gigabytes_per_second": limits.read(size, 0.0) / 1e9,
        "gigaflops_per_second": limits.arithmetic(0.0) / 1e9,
    }


def _prefill_work(model: "Model", tokens: int) -> Work:
    """Of a prompt: one step, or as many as its chunks."""
    chunk = model.runner.max_tokens
    return reduce(
        add,
        (
            step_work(model.program, min(chunk, tokens - start), start)
            for start in range(0, tokens, chunk)
        ),
    )


def _phase(
    seconds: list[float], tokens: int, work: Work, size: int, measured: Measured, name: str
) -> dict[str, object]:
    """A phase of ``tokens`` tokens, against the limit: ``share`` is ``rate / limit``.

    ``bound_by`` names the largest part of its time; where that is the kernels, the limit that would
    hold even perfect ones up longest.
    """
    median = statistics.median(seconds)
    phase = {
        "tokens": tokens,
        "milliseconds": _spread([each * 1e3 for each in seconds]),
        "tokens_per_second": _rates(tokens, seconds),
        "bytes": work.nbytes,
        "flops": work.flops,
        "gigabytes_per_second": work.nbytes / median / 1e9,
        "gigaflops_per_second": work.flops / median / 1e9,
    }
    if measured.limits is None:
        return phase
    floor = measured.limits.floor(work.nbytes, work.flops, size)
    parts = measured.splits[name].shares()
    largest = max(parts, key=lambda part: parts[part])
    return phase | {
        "limited_by": floor.bound,
        "rate": floor.rate(median),
        "limit": floor.rate(floor.seconds),
        "unit": floor.unit,
        "share": floor.seconds / median,
        "time": parts,
        "bound_by": floor.bound if largest == "kernels" else largest,
    }


def _rates(count: int, seconds: list[float]) -> dict[str, float]:
    return _spread([count / each for each in seconds])


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
