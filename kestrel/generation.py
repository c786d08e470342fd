"""What generation_config.json says about choosing tokens, and which tokens end an answer.

transformers' rules decide what the file means (5.24, ``generation/configuration_utils.py``):
without ``do_sample: true`` decoding is greedy; with it the options that the file does not set have
defaults, of which ``top_k`` 50 is the one that surprises. Every key that the file may have is in
the table below; one that is not there, or asks for something that would change the answer and is
not implemented, is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kestrel.errors import ConfigError, RequestError
from kestrel.sampling.params import SamplingParams

if TYPE_CHECKING:
    from kestrel.checkpoint import Checkpoint
    from kestrel.tokenizer import Tokenizer

__all__ = [
    "GenerationSettings", "default_params", "end_token_ids", "generation_notes", "read_generation",
]  # fmt: skip

FILE = "generation_config.json"
_DEFAULT = "default"
_GREEDY = f"greedy, because {FILE} does not say do_sample: true"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What becomes of a key of the file.

    Attributes:
        kind: ``option`` is followed; ``sampling`` is followed where do_sample is true, noted
            elsewhere; ``harmless`` cannot change the tokens of one answer; ``noted`` is not
            followed and said so; ``refused`` stops; ``sampling refused`` stops where do_sample is
            true, noted elsewhere.
        neutral: values, besides null, that ask for nothing.
        detail: the SamplingParams option, transformers' default for it; or what the key is for.
    """

    kind: str
    neutral: tuple[object, ...] = ()
    detail: str = ""
    default: object = None


def _harmless(detail: str, *names: str) -> dict[str, _Rule]:
    return {name: _Rule("harmless", (), detail) for name in names}


#: A quantized cache is the one implementation that changes the numbers.
_EXACT_CACHES = (
    "dynamic", "static", "offloaded", "offloaded_static", "sliding_window", "hybrid",
    "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked", "paged",
)


RULES: dict[str, _Rule] = {
    # Followed.
    "do_sample": _Rule("option"),
    "repetition_penalty": _Rule("option", (1.0,), "repetition_penalty"),
    "max_new_tokens": _Rule("option", (), "max_tokens"),
    "stop_strings": _Rule("option", (), "stop"),
    "temperature": _Rule("sampling", (1.0,), "temperature", 1.0),
    "top_k": _Rule("sampling", (50,), "top_k", 50),
    "top_p": _Rule("sampling", (1.0,), "top_p", 1.0),
    "min_p": _Rule("sampling", (), "min_p", 0.0),
    "eos_token_id": _Rule("harmless"),  # followed by end_token_ids
    # Not implemented, and changes the answer.
    "typical_p": _Rule("sampling refused", (1.0,), "locally typical sampling"),
    "epsilon_cutoff": _Rule("sampling refused", (0.0,), "epsilon sampling"),
    "eta_cutoff": _Rule("sampling refused", (0.0,), "eta sampling"),
    "top_h": _Rule("sampling refused", (), "top-H sampling"),
    "num_beams": _Rule("refused", (1,), "beam search"),
    "num_beam_groups": _Rule("refused", (1,), "diverse beam search"),
    "diversity_penalty": _Rule("refused", (0.0,), "diverse beam search"),
    "constraints": _Rule("refused", ([],), "constrained beam search"),
    "force_words_ids": _Rule("refused", ([],), "constrained beam search"),
    "penalty_alpha": _Rule("refused", (0.0,), "contrastive search"),
    "dola_layers": _Rule("refused", (), "DoLa decoding"),
    "assistant_ensemble_weight": _Rule("refused", (), "lossy speculative decoding"),
    "guidance_scale": _Rule("refused", (1.0,), "classifier-free guidance"),
    "encoder_repetition_penalty": _Rule("refused", (1.0,), "a penalty on the prompt's tokens"),
    "no_repeat_ngram_size": _Rule("refused", (0,), "blocking repeated n-grams"),
    "encoder_no_repeat_ngram_size": _Rule("refused", (0,), "blocking n-grams of the prompt"),
    "bad_words_ids": _Rule("refused", ([],), "blocking sequences of tokens"),
    "suppress_tokens": _Rule("refused", ([],), "blocking tokens; logit_bias with -inf does it"),
    "begin_suppress_tokens": _Rule("refused", ([],), "blocking tokens at the beginning"),
    "sequence_bias": _Rule("refused", ({}, []), "a bias on sequences; logit_bias is per token"),
    "forced_bos_token_id": _Rule("refused", (), "a forced first token"),
    "forced_eos_token_id": _Rule("refused", (), "a forced last token"),
    "forced_decoder_ids": _Rule("refused", ([],), "forced tokens"),
    "exponential_decay_length_penalty": _Rule("refused", (), "a growing bias towards the end"),
    "min_length": _Rule("refused", (0,), "a least length"),
    "min_new_tokens": _Rule("refused", (0,), "a least length"),
    "max_time": _Rule("refused", (), "a limit of time"),
    "watermarking_config": _Rule("refused", (), "watermarking"),
    "cache_implementation": _Rule("refused", _EXACT_CACHES, "a quantized cache"),
    "token_healing": _Rule("refused", (False,), "token healing"),
    # Not followed, and said so: other modes, or another way here.
    "max_length": _Rule("noted", (20,), "an answer ends at max_tokens or at the context limit"),
    "early_stopping": _Rule("noted", (False,), "only beam search looks at it"),
    "length_penalty": _Rule("noted", (1.0,), "only beam search looks at it"),
    "num_return_sequences": _Rule("noted", (1,), "each prompt gets one answer"),
    "remove_invalid_values": _Rule("noted", (False,), "logits that are not finite are an error"),
    "decoder_start_token_id": _Rule("noted", (), "only encoder-decoder models look at it"),
    # Which tokens come does not depend on them.
    **_harmless("tokens that are not drawn", "bos_token_id", "pad_token_id"),
    **_harmless(
        "how transformers computes and caches",
        "use_cache", "cache_config", "max_cache_len", "compile_config",
        "disable_compile", "low_memory", "prefill_chunk_size", "continuous_batching_config",
    ),
    **_harmless(
        "what transformers returns besides the tokens",
        "renormalize_logits", "output_attentions", "output_hidden_states", "output_scores",
        "output_logits", "return_dict_in_generate",
    ),
    **_harmless(
        "speculative decoding that keeps the distribution",
        "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "speculation_type",
    ),
    **_harmless(
        "where the file comes from",
        "transformers_version", "_from_model_config", "_commit_hash", "_original_object_hash",
    ),
}


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How a model's answers are made unless a request says otherwise.

    Attributes:
        defaults, sources: see ``default_params``.
        end_ids: see ``end_token_ids``.
        notes: see ``generation_notes``.
    """

    defaults: SamplingParams
    sources: dict[str, str]
    end_ids: dict[int, list[str]]
    notes: list[str]


def read_generation(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> GenerationSettings:
    """What the files of a model folder say. Raises ConfigError with the path of the file."""
    config = checkpoint.generation_config
    try:
        defaults, sources = default_params(config)
        end_ids = end_token_ids(checkpoint.config, config, tokenizer)
        return GenerationSettings(defaults, sources, end_ids, generation_notes(config))
    except ConfigError as error:
        # Each message begins with the name of its file.
        file = checkpoint.folder / str(error).partition(":")[0]
        raise ConfigError(f"{checkpoint.folder / str(error)}", error.key, file) from None


def default_params(
    generation_config: Mapping[str, object] | None,
) -> tuple[SamplingParams, dict[str, str]]:
    """The model's own sampling options, and for each option where its value is from.

    Args:
        generation_config: the file's content; None where there is none: greedy.

    Raises:
        ConfigError: a key that is not known, a value of the wrong type or out of range, or one that
            asks for what is not implemented.
    """
    options, sources, _ = _read(generation_config or {})
    params = SamplingParams(**options)
    return params, {f.name: sources.get(f.name, _DEFAULT) for f in fields(params)}


def generation_notes(generation_config: Mapping[str, object] | None) -> list[str]:
    """A sentence for each setting of the file that is not followed. Raises as default_params."""
    return _read(generation_config or {})[2]


def end_token_ids(
    config: Mapping[str, object],
    generation_config: Mapping[str, object] | None,
    tokenizer: Tokenizer | None = None,
) -> dict[int, list[str]]:
    """Ids that end an answer, each with the places that name it: the union of all, ascending.

    Places are config.json, generation_config.json (``eos_token_id``, an id or a list) and the
    tokenizer's eos_token. Raises ConfigError when an id is no integer of at least 0.
    """
    found: dict[int, list[str]] = {}
    for file, source in (("config.json", config), (FILE, generation_config or {})):
        for token_id in _ids(file, source.get("eos_token_id")):
            place = f"{file} eos_token_id"
            if place not in found.setdefault(token_id, []):
                found[token_id].append(place)
    for token_id, place in (tokenizer.eos_ids if tokenizer else {}).items():
        found.setdefault(token_id, []).append(place)
    return dict(sorted(found.items()))


def _ids(file: str, value: object) -> list[int]:
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        is_integer = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_integer or not 0 <= token_id < 2**31:  # steps hold ids as int32
            raise ConfigError(
                f"{file}: eos_token_id: expected a token id (an integer from 0 to 2147483647), a "
                f"list of them, or null, found {value!r:.80}",
                "eos_token_id",
            )
    return ids


def _read(config: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Options for SamplingParams, where each is from, and notes."""
    sampling = config.get("do_sample")
    if sampling is not None and not isinstance(sampling, bool):
        raise ConfigError(
            f"{FILE}: do_sample: expected true or false, found {sampling!r}", "do_sample"
        )
    options: dict[str, Any] = {} if sampling else {"temperature": 0.0}
    sources = {} if sampling else {"temperature": _GREEDY}
    notes = []
    for name, value in config.items():
        if value is None:
            continue
        rule = RULES.get(name)
        if rule is None:
            raise ConfigError(_unknown(name, value), name)
        kind = rule.kind
        followed = kind == "option" or (kind == "sampling" and sampling)
        if followed and rule.detail:
            _follow(name, rule.detail, value, options)
            sources[rule.detail] = f"{FILE} {name}"
        elif followed or kind == "harmless" or _is_neutral(value, rule.neutral):
            continue
        elif kind == "refused" or (kind == "sampling refused" and sampling):
            raise ConfigError(_refusal(name, value, rule), name)
        elif kind == "noted":
            notes.append(f"{FILE}: {name} {value!r} is not followed: {rule.detail}")
        else:
            notes.append(f"{FILE}: {name} {value!r} is not used: do_sample is not true")
    if sampling:
        for rule in RULES.values():
            if rule.kind == "sampling" and rule.detail not in options:
                options[rule.detail] = rule.default
                sources[rule.detail] = "transformers' default where do_sample is true"
    return options, sources, notes


def _follow(name: str, option: str, value: object, options: dict[str, Any]) -> None:
    if option == "stop" and isinstance(value, str):
        value = (value,)
    try:
        options[option] = getattr(SamplingParams(**{option: value}), option)
    except RequestError as error:
        message = str(error).replace(f"sampling option {option}", name)
        raise ConfigError(f"{FILE}: {message}", name) from None


def _is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    # False == 0 in Python, and a flag where a number belongs is not understood.
    return any(
        value == other and (type(value) is bool) == (type(other) is bool) for other in neutral
    )


def _refusal(name: str, value: object, rule: _Rule) -> str:
    expected = " or ".join([*map(repr, rule.neutral), "null"])
    return (
        f"{FILE}: {name}: expected {expected}, found {value!r}: {rule.detail} is not implemented, "
        "and would change the answer; remove the key to go without it"
    )


def _unknown(name: str, value: object) -> str:
    near = difflib.get_close_matches(name, RULES, n=1)
    hint = f", perhaps meant as {near[0]!r}" if near else ""
    return (
        f"{FILE}: {name}: not known{hint}, found {value!r}: whether it changes the answer "
        "cannot be told; remove the key if it does not matter"
    )
