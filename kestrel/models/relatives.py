"""What public models are that Kestrel does not run, so that a refusal says more than a name."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["RELATIVES"]

_EXPERTS = "a mixture of experts, which is not supported yet"
_IMAGES = "a model of text and images, and text alone is supported"
_STATES = "a model with layers of recurrent state, which are not supported"

#: model_type to what it is, for relatives of the families that are supported.
RELATIVES = MappingProxyType(
    {
        **dict.fromkeys(
            "dbrx deepseek_v2 deepseek_v3 ernie4_5_moe flex_olmo glm4_moe gpt_oss granitemoe "
            "granitemoeshared hunyuan_v1_moe llama4_text minimax mixtral olmoe phimoe qwen2_moe "
            "qwen3_moe".split(),
            _EXPERTS,
        ),
        "llama4": "a mixture of experts with a part for images, which is not supported yet",
        **dict.fromkeys(
            "bamba falcon_h1 falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h qwen3_5 "
            "qwen3_5_moe qwen3_next".split(),
            _STATES,
        ),
        **dict.fromkeys(
            "gemma3n idefics3 llava mistral3 mllama paligemma phi4_multimodal pixtral qwen2_5_vl "
            "qwen2_vl qwen3_vl smolvlm".split(),
            _IMAGES,
        ),
        "gemma3": (
            "Gemma 3 with its part for images: save the text part as a model of its own (its "
            "text_config as config.json, with model_type gemma3_text, and the tensors of the "
            "language model)"
        ),
        "gemma3n_text": "Gemma 3n, whose layers share states and have inputs of their own",
        "olmo": "OLMo 1, whose layer norms are not RMS norms",
        "phi": "Phi 1 or 2, whose attention and MLP stand side by side",
    }
)
