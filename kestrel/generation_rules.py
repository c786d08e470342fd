"""Every key of a generation_config.json, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a key of the file.

    Attributes:
        kind: ``option`` is followed; ``sampling`` is followed where do_sample is true, noted
            elsewhere; ``harmless`` cannot change the tokens of one answer; ``noted`` is not
            followed and said so; ``refused`` stops; ``sampling refused`` stops where do_sample is
            true, noted elsewhere.
        neutral: values, besides null, that ask for nothing.
        detail: the SamplingParams option; or what the key is for.
        default: transformers' default for the option.
        instead: the end of the message about a refused key: what does the same here.
    """

    kind: str
    neutral: tuple[object, ...] = ()
    detail: str = ""
    default: object = None
    instead: str = ""


def _harmless(detail: str, *names: str) -> dict[str, Rule]:
    return {name: Rule("harmless", (), detail) for name in names}


#: A quantized cache is the one implementation that changes the numbers.
_EXACT_CACHES = (
    "dynamic", "static", "offloaded", "offloaded_static", "sliding_window", "hybrid",
    "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked", "paged",
)


RULES: dict[str, Rule] = {
    # Followed.
    "do_sample": Rule("option", (False,)),
    "repetition_penalty": Rule("option", (1.0,), "repetition_penalty"),
    "max_new_tokens": Rule("option", (), "max_tokens"),
    "stop_strings": Rule("option", (), "stop"),
    "temperature": Rule("sampling", (1.0,), "temperature", 1.0),
    "top_k": Rule("sampling", (50,), "top_k", 50),
    "top_p": Rule("sampling", (1.0,), "top_p", 1.0),
    "min_p": Rule("sampling", (), "min_p", 0.0),
    "eos_token_id": Rule("harmless"),  # followed by end_token_ids
    # Not implemented, and changes the answer.
    "typical_p": Rule("sampling refused", (1.0,), "locally typical sampling"),
    "epsilon_cutoff": Rule("sampling refused", (0.0,), "epsilon sampling"),
    "eta_cutoff": Rule("sampling refused", (0.0,), "eta sampling"),
    "top_h": Rule("sampling refused", (), "top-H sampling"),
    "num_beams": Rule("refused", (1,), "beam search"),
    "num_beam_groups": Rule("refused", (1,), "diverse beam search"),
    "diversity_penalty": Rule("refused", (0.0,), "diverse beam search"),
    "constraints": Rule("refused", ([],), "constrained beam search"),
    "force_words_ids": Rule("refused", ([],), "constrained beam search"),
    "penalty_alpha": Rule("refused", (0.0,), "contrastive search"),
    "dola_layers": Rule("refused", (), "DoLa decoding"),
    "assistant_ensemble_weight": Rule("refused", (), "lossy speculative decoding"),
    "guidance_scale": Rule("refused", (1.0,), "classifier-free guidance"),
    "encoder_repetition_penalty": Rule("refused", (1.0,), "a penalty on the prompt's tokens"),
    "no_repeat_ngram_size": Rule("refused", (0,), "blocking of repeated n-grams"),
    "encoder_no_repeat_ngram_size": Rule("refused", (0,), "blocking of n-grams of the prompt"),
    "bad_words_ids": Rule("refused", ([],), "blocking of sequences of tokens"),
    "suppress_tokens": Rule(
        "refused", ([],), "blocking of tokens", instead=", and ban the tokens with logit_bias -inf"
    ),
    "begin_suppress_tokens": Rule("refused", ([],), "blocking of tokens at the beginning"),
    "sequence_bias": Rule("refused", ({}, []), "a bias on sequences of tokens"),
    "forced_bos_token_id": Rule("refused", (), "a forced first token"),
    "forced_eos_token_id": Rule("refused", (), "a forced last token"),
    "forced_decoder_ids": Rule("refused", ([],), "forcing of tokens"),
    "exponential_decay_length_penalty": Rule("refused", (), "a growing bias towards the end"),
    "min_length": Rule("refused", (0,), "a least length"),
    "min_new_tokens": Rule("refused", (0,), "a least length"),
    "max_time": Rule("refused", (), "a limit of time"),
    "watermarking_config": Rule("refused", (), "watermarking"),
    "cache_implementation": Rule("refused", _EXACT_CACHES, "a quantized cache"),
    "token_healing": Rule("refused", (False,), "token healing"),
    # Not followed, and said so: other modes, or another way here.
    "max_length": Rule("noted", (20,), "an answer ends at max_tokens or at the context limit"),
    "early_stopping": Rule("noted", (False,), "only beam search looks at it"),
    "length_penalty": Rule("noted", (1.0,), "only beam search looks at it"),
    "num_return_sequences": Rule("noted", (1,), "each prompt gets one answer"),
    "remove_invalid_values": Rule("noted", (False,), "logits that are not finite are an error"),
    "decoder_start_token_id": Rule("noted", (), "only encoder-decoder models look at it"),
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
