"""What several commands share: the model, the sampling options, what goes to which stream.

Text and results go to standard output, everything said about them to standard error.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.errors import BackendUnavailableError, RequestError
from kestrel.integers import counted
from kestrel.runtime import native_ops, settings
from kestrel.sampling.params import GREEDY_TEMPERATURE, SamplingParams
from kestrel.sampling.rng import fresh_seed
from kestrel.sampling.sampler import check_ids

if TYPE_CHECKING:
    import argparse

    from kestrel.engine.request import Usage
    from kestrel.model import Model

__all__ = [
    "check_isa", "describe_load", "describe_model", "describe_params", "figures", "given_params",
    "load_model", "note", "params_for", "print_json", "rate", "visible",
]  # fmt: skip

#: New tokens of ``generate`` where neither the line nor generation_config.json says how many.
DEFAULT_MAX_TOKENS = 256

#: Options that say what to report, and those without effect where nothing is drawn.
_REPORTING = ("seed", "logprobs", "logprobs_after_sampling")
_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")

#: Control characters by which a model could move the cursor or retitle the window.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def note(message: str) -> None:
    """A sentence on standard error."""
    print(f"kestrel: {message}", file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """The text with control characters made visible where standard output is a terminal."""
    return text.translate(_CONTROLS) if sys.stdout.isatty() else text


def print_json(value: object) -> None:
    """One JSON object on one line of standard output, in ASCII."""
    print(json.dumps(value))


def check_isa(option: str | None) -> None:
    """Raises RequestError where ``--isa``, or else KESTREL_ISA, names no instruction set.

    One that exists, but not on this machine, is left to the backend.
    """
    try:
        ops = native_ops()
    except BackendUnavailableError:
        return  # whoever needs it says so
    name, source = (settings().isa, "KESTREL_ISA") if option is None else (option, "--isa")
    known = [*ops.isas(), *ops.missing_isas()]
    if name is not None and name not in known:
        raise RequestError(
            f"{source}: expected one of {', '.join(known)} (see kestrel devices), found {name!r}"
        )


def load_model(args: "argparse.Namespace", max_seqs: int = 1, **changes: object) -> "Model":
    """The model that the options ask for; its notes go to standard error.

    ``max_seqs`` is what the command runs at once, so that the cache is no larger than that needs.
    ``changes`` replace options of ``kestrel.load``.
    """
    from kestrel.model import load
    from kestrel.models.limits import Limits

    check_isa(args.isa)
    options = {
        "backend": args.backend,
        "limits": Limits(max_seqs=max_seqs, max_context=args.max_context),
        "threads": args.threads,
        "isa": args.isa,
        "kv_dtype": args.kv_dtype,
        "mmap": not args.no_mmap,
        "refresh": args.refresh,
    }
    options.update(changes)
    _check_cpu_options(args, options)
    model = load(args.model, **options)
    for sentence in model.notes:
        note(f"note: {sentence}")
    return model


def _check_cpu_options(args: "argparse.Namespace", options: dict[str, object]) -> None:
    """Raises BackendUnavailableError for options of the cpu backend with another one."""
    backend = options["backend"]
    if backend == "auto":
        backend = settings().backend or "cpu"
    for name in ("threads", "isa"):
        if backend != "cpu" and options[name] is not None:
            given = getattr(args, name)
            shown = ",".join(map(str, given)) if isinstance(given, list) else given
            raise BackendUnavailableError(
                f"--{name} {shown}: an option of the cpu backend, which backend {backend!r} does "
                "not have: leave it out, or choose --backend cpu"
            )


def given_params(args: "argparse.Namespace") -> dict[str, object]:
    """The sampling options given on the command line, checked before any model is loaded.

    Raises RequestError that names the option, what was expected and what was found.
    """
    given: dict[str, object] = {}
    for field in fields(SamplingParams):
        value = getattr(args, field.name, None)
        if value is None or value is False:
            continue
        value = dict(value) if field.name == "logit_bias" else value
        try:
            SamplingParams(**{field.name: value})
        except RequestError as error:
            raise _by_option(error) from None
        given[field.name] = value
    if args.greedy:
        if given.get("temperature"):
            raise RequestError(
                f"--greedy: it means --temperature 0, found --temperature {given['temperature']:g} "
                "too: give one of them"
            )
        given["temperature"] = 0.0
    if given.get("logprobs_after_sampling") and "logprobs" not in given:
        raise RequestError(
            "--logprobs-after-sampling: expected --logprobs N too, which says how many to list, "
            "found none"
        )
    return given


def _by_option(error: RequestError) -> RequestError:
    """The error about a field of SamplingParams, by the name of its option on the command line."""

    def option(found: "re.Match[str]") -> str:
        name = "stop_token" if found[1] == "stop_token_ids" else found[1]
        return "--" + name.replace("_", "-")

    return RequestError(re.sub(r"sampling option (\w+)", option, str(error)))


def params_for(
    model: "Model", given: dict[str, object], max_tokens: int | None = DEFAULT_MAX_TOKENS
) -> SamplingParams:
    """The model's own defaults with the given options; a seed is drawn where one is needed.

    ``max_tokens`` holds where neither says how many; None leaves that to the context limit.
    Raises RequestError for an option with a token id that the model does not have.
    """
    params = model.defaults.replace(**given)
    try:
        check_ids(params, model.config.vocab_size)
    except RequestError as error:
        raise _by_option(error) from None
    if params.max_tokens is None:
        params = params.replace(max_tokens=max_tokens)
    if params.seed is None and not params.is_greedy:
        # Short enough to be typed again; the engine would draw 63 bits.
        params = params.replace(seed=fresh_seed() >> 31)
    idle = [name for name in _DRAWING if params.is_greedy and given.get(name)]
    if idle and params.temperature < GREEDY_TEMPERATURE:
        options = ", ".join("--" + name.replace("_", "-") for name in idle)
        note(f"note: {options} without effect: the answer is greedy; --temperature 1 draws tokens")
    return params


def describe_model(model: "Model") -> str:
    """Backend, threads, context and what a token of cache costs, in one line."""
    info = model.backend.info
    device = info.name
    if info.isa:
        device = f"{info.name} {info.isa}, {counted(info.threads, 'thread')}"
    per_token = model.cache.nbytes // (model.cache.num_blocks * BLOCK_SIZE)
    return (
        f"{model.name} on {device}; context {model.context_limit:,} tokens, cache "
        f"{per_token:,} bytes a token"
    )


def describe_load(model: "Model") -> str:
    """How long loading took, as a whole and by part."""
    parts = ", ".join(f"{part} {took:.2f}" for part, took in model.load_seconds.items())
    return f"loaded in {sum(model.load_seconds.values()):.2f} s: {parts}"


def describe_params(model: "Model", params: SamplingParams, given: dict[str, object]) -> str:
    """How tokens are chosen, enough to repeat a run: each option that acts, by where it is from."""
    plain = SamplingParams()
    shown = {"": ["greedy"] if params.is_greedy else [f"seed {params.seed}"]}
    for name, value in asdict(params).items():
        if name in _REPORTING or (params.is_greedy and name in _DRAWING):
            continue
        acts = value != getattr(plain, name) or name == "temperature"
        if acts or name in given:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            source = model.default_sources[name].removesuffix(f" {name}")
            if name in given or source == "default":
                source = ""
            shown.setdefault(source, []).append(f"{name} {text}")
    return "; ".join(
        (f"{source}: " if source else "") + ", ".join(options) for source, options in shown.items()
    )


def rate(count: int, seconds: float) -> float | None:
    """Per second, or None where there is nothing to measure."""
    return count / seconds if count > 0 and seconds > 0 else None


def figures(usage: "Usage", first_token_seconds: float | None) -> dict[str, object]:
    """Tokens, time to first token and tokens per second of one answer."""
    computed = usage.prompt_tokens - usage.cached_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "first_token_seconds": first_token_seconds,
        "prefill_tokens_per_second": rate(computed, usage.prefill_seconds),
        # The first token comes from the prefill: one decode step less than there are tokens.
        "decode_tokens_per_second": rate(usage.completion_tokens - 1, usage.decode_seconds),
    }
