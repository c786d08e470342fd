"""Keys of config.json that any family may carry, and what each means for inference.

Drawn from transformers' PreTrainedConfig and GenerationConfig (4.x and 5.x) and from what public
checkpoints hold. A key that stands neither here nor in its family is refused by name.
"""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["GENERATION_KEYS", "NEUTRAL_VALUES", "QUANTIZATION_KEYS", "WITHOUT_EFFECT"]

_RECORD = "a record of where the file comes from"
_TRAINING = "acts in training only"
_OUTPUTS = "says what transformers returns or keeps, not what it computes"
_TOKEN = "an id for the tokenizer or for generation"

#: Keys that cannot change a logit, with the reason; any value passes.
WITHOUT_EFFECT = MappingProxyType(
    {
        "transformers_version": _RECORD,
        "name_or_path": _RECORD,
        "finetuning_task": _RECORD,
        "tokenizer_class": "for the tokenizer, where its own config names none",
        "unsloth_version": _RECORD,
        "unsloth_fixed": _RECORD,
        "transformers.js_config": "for another runtime",
        "torch_dtype": "the weight files say it themselves",
        "dtype": "the weight files say it themselves",
        "initializer_range": _TRAINING,
        "attention_dropout": _TRAINING,
        "gradient_checkpointing": _TRAINING,
        "use_bfloat16": _TRAINING,
        "tf_legacy_loss": _TRAINING,
        "torchscript": _OUTPUTS,
        "use_cache": _OUTPUTS,
        "return_dict": _OUTPUTS,
        "output_attentions": _OUTPUTS,
        "output_hidden_states": _OUTPUTS,
        "tie_last_hidden_states": _OUTPUTS,
        "is_decoder": "the families here are decoders whatever it says",
        "attn_implementation": "chooses among ways to the same result",
        "cache_implementation": "chooses among ways to the same result",
        "chunk_size_feed_forward": "chooses among ways to the same result",
        "id2label": "for classification heads",
        "label2id": "for classification heads",
        "num_labels": "for classification heads",
        "problem_type": "for classification heads",
        "task_specific_params": "for pipelines of transformers",
        "bos_token_id": _TOKEN,
        "eos_token_id": _TOKEN,
        "pad_token_id": _TOKEN,
        "sep_token_id": _TOKEN,
        "decoder_start_token_id": _TOKEN,
    }
)

#: Generation settings that old config.json files hold: for ``kestrel.generation``, which follows
#: them where there is no generation_config.json.
GENERATION_KEYS = frozenset(
    "assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens "
    "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size "
    "encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty "
    "forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens "
    "min_length min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens "
    "num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences "
    "output_scores remove_invalid_values repetition_penalty return_dict_in_generate "
    "suppress_tokens target_lookbehind temperature top_k top_p typical_p".split()
)

#: Signs of weights that are not plain numbers; refused whatever they hold.
QUANTIZATION_KEYS = ("quantization_config", "quantization", "compression_config")

#: Keys that pass with these values alone (null passes always), and what any other value asks for.
NEUTRAL_VALUES: MappingProxyType[str, tuple[tuple[object, ...], str]] = MappingProxyType(
    {
        "pretraining_tp": ((1,), "sums in slices, which rounds otherwise"),
        "is_encoder_decoder": ((False,), "an encoder"),
        "add_cross_attention": ((False,), "cross-attention"),
        "cross_attention_hidden_size": ((), "cross-attention"),
        "tie_encoder_decoder": ((False,), "an encoder"),
        "pruned_heads": (({},), "attention heads taken out"),
        "per_layer_config": (({},), "layers of different kinds"),
        "prefix": (("",), "a text in front of each prompt"),
        "sliding_window": ((), "sliding-window attention"),
        "use_sliding_window": ((False,), "sliding-window attention"),
        "max_window_layers": ((), "sliding-window attention"),
        "use_bidirectional_attention": ((False,), "attention to later tokens"),
        "use_mrope": ((False,), "RoPE over the axes of images"),
        "rope_interleaved": ((False,), "RoPE over neighbouring pairs"),
        "is_llama_config": ((True,), "another architecture"),
    }
)
