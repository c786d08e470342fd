"""``kestrel bench``: tokens per second and time to first token, as users get them.

The protocol: a prompt of 16 tokens, 32 tokens generated greedily, two warm-up runs and five
measured ones, then as many runs of a 128-token prompt for the prefill alone. No run finds anything
in the cache: each has a first token of its own. The logits behind one answer are hashed, so that a
fast run of wrong kernels shows.
"""

from __future__ import annotations

import hashlib
import platform
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel.cli.common import describe_model, load_model, note, print_json
from kestrel.engine.request import Finished
from kestrel.errors import KestrelError, RequestError
from kestrel.processors import processor_name
from kestrel.sampling.params import SamplingParams

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from kestrel.model import Model

__all__ = ["run"]

#: Steps through the vocabulary for ids of prompts: a prime, so that they do not repeat soon.
_STRIDE = 7919


@dataclass(frozen=True)
class _Run:
    """Seconds until the first token, and from it until the last of ``new_tokens``."""

    first_token: float
    decode: float


def run(args: "argparse.Namespace") -> int:
    """Measure and print; 0."""
    from tqdm import tqdm

    model = load_model(args)
    needed = max(args.prompt_tokens + args.new_tokens, args.prefill_tokens + 1)
    if needed > model.context_limit:
        raise RequestError(
            f"bench: the protocol needs a context of {needed} tokens, found {model.context_limit}: "
            "lower --prompt-tokens, --new-tokens or --prefill-tokens"
        )
    if not args.json:
        note(describe_model(model))
    prompts = _prompts(model)
    rounds = args.warmup + args.runs
    with tqdm(total=2 * rounds + 1, desc="bench", unit="run", leave=False, disable=None) as bar:

        def measure(length: int, new_tokens: int) -> list[_Run]:
            runs = []
            for _ in range(rounds):
                runs.append(_generate(model, prompts(length), new_tokens)[0])
                bar.update()
            return runs[args.warmup :]

        checksum = _checksum(model, prompts(args.prompt_tokens), args.new_tokens)
        bar.update()
        whole = measure(args.prompt_tokens, args.new_tokens)
        prefill = measure(args.prefill_tokens, 1)
    report = _report(args, model, whole, prefill, checksum)
    if args.json:
        print_json(report)
    else:
        print(_table(report))
    return 0


def _prompts(model: "Model") -> "Callable[[int], list[int]]":
    """Gives a prompt of a length; each differs from all others in its first token."""
    vocab_size = model.config.vocab_size
    start = 0

    def make(length: int) -> list[int]:
        nonlocal start
        start += 1
        return [(start + i * _STRIDE) % vocab_size for i in range(length)]

    return make


def _generate(model: "Model", ids: list[int], new_tokens: int) -> tuple[_Run, list[int]]:
    """Generate greedily; the times and the new ids."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    times, tokens = [], []
    started = time.perf_counter()
    for event in model.stream(ids, params):
        if isinstance(event, Finished):
            if event.usage.cached_tokens:
                raise KestrelError(
                    f"bench: {event.usage.cached_tokens} prompt tokens were in the cache already: "
                    f"a vocabulary of {model.config.vocab_size} is too small for so many runs"
                )
        else:
            times.append(time.perf_counter())
            tokens.append(event.id)
    return _Run(times[0] - started, times[-1] - times[0]), tokens


def _checksum(model: "Model", ids: list[int], new_tokens: int) -> str:
    """SHA-256 over the float32 logits before each new token, in 16 hexadecimal digits."""
    _, tokens = _generate(model, ids, new_tokens)
    digest = hashlib.sha256()
    session = model.session()
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


def _report(
    args: "argparse.Namespace",
    model: "Model",
    whole: list[_Run],
    prefill: list[_Run],
    checksum: str,
) -> dict[str, object]:
    steps = args.new_tokens - 1  # the first token comes from the prefill
    info = model.backend.info
    weight_bytes = model.program.weight_bytes()
    decode = _spread([steps / run.decode for run in whole])
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
        "first_token_ms": _spread([run.first_token * 1e3 for run in whole]),
        "prefill_tokens_per_second": _spread([args.prompt_tokens / r.first_token for r in whole]),
        "long_prefill_tokens_per_second": _spread(
            [args.prefill_tokens / run.first_token for run in prefill]
        ),
        "decode_tokens_per_second": decode,
        "weight_bytes_per_step": weight_bytes,
        "decode_weight_gigabytes_per_second": weight_bytes * decode["median"] / 1e9,
        "logits_checksum": checksum,
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _table(report: dict) -> str:
    protocol, machine = report["protocol"], report["machine"]
    rows = [
        ("first token, ms", "first_token_ms"),
        (f"prefill of {protocol['prompt_tokens']}, tokens/s", "prefill_tokens_per_second"),
        (f"prefill of {protocol['prefill_tokens']}, tokens/s", "long_prefill_tokens_per_second"),
        (f"decode of {protocol['new_tokens']}, tokens/s", "decode_tokens_per_second"),
    ]
    lines = [f"{'':26} {'median':>10} {'min':>10} {'max':>10}"]
    for label, key in rows:
        spread = report[key]
        cells = (f"{spread[name]:10,.1f}" for name in ("median", "min", "max"))
        lines.append(f"{label:26} " + " ".join(cells))
    threads = f"{machine['threads']} thread" + "s" * (machine["threads"] != 1)
    device = " ".join(filter(None, (machine["backend"], machine["isa"])))
    lines += [
        f"weights: {report['weight_bytes_per_step'] / 1e6:,.1f} MB a step, "
        f"{report['decode_weight_gigabytes_per_second']:.1f} GB/s while decoding",
        f"logits checksum: {report['logits_checksum']}",
        f"{machine['processor']}; {device}, {threads}; cache {machine['kv_dtype']}; "
        f"{protocol['warmup']} warm-up and {protocol['runs']} measured runs",
    ]
    return "\n".join(lines)
