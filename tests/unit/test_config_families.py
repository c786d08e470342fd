"""What every family has in common: each config.json is understood, or refused by name."""

import random

import pytest
from unit.family_configs import CLASSES, PUBLIC, TINY, tiny

from kestrel.errors import ConfigError, KestrelError, UnsupportedModelError
from kestrel.models import FAMILIES, DecoderConfig, family_for

families = pytest.mark.parametrize("family", CLASSES)


def parse(config: dict) -> DecoderConfig:
    return family_for(config, "config.json").parse(config, "config.json")


def refusal(config: dict, error: type = UnsupportedModelError) -> str:
    with pytest.raises(error) as caught:
        parse(config)
    message = str(caught.value)
    assert message.startswith("config.json: ") and len(message) < 500
    return message


#: Signatures of transformers' classes: num_key_value_heads, head_dim, rms_norm_eps, rope_theta,
#: max_position_embeddings, tie_word_embeddings of a model of hidden_size 32 and 4 heads.
DEFAULTS = {
    "llama": (4, 8, 1e-6, 10000.0, 2048, False),
    "mistral": (8, 8, 1e-6, 10000.0, 131072, False),
    "qwen2": (32, 8, 1e-6, 10000.0, 32768, False),
    "qwen3": (32, 128, 1e-6, 10000.0, 32768, False),
    "smollm3": (4, 8, 1e-6, 2000000.0, 32768, True),
    "gemma": (16, 256, 1e-6, 10000.0, 8192, True),
    "gemma2": (4, 256, 1e-6, 10000.0, 8192, True),
    "gemma3_text": (4, 256, 1e-6, 1000000.0, 131072, True),
    "olmo2": (4, 8, 1e-5, 10000.0, 2048, False),
    "granite": (4, 8, 1e-6, 10000.0, 2048, False),
    "phi3": (4, 8, 1e-5, 10000.0, 4096, False),
}


@families
def test_absent_fields_take_the_defaults_of_the_family_and_say_so(family):
    # S11, S14
    kv_heads, head_dim, eps, theta, context, tied = DEFAULTS[family]
    # As many heads as kv heads where the default is more than TINY's 4.
    heads = max(kv_heads, 4)
    config = parse({**TINY, "model_type": family, "num_attention_heads": heads, "hidden_size": 64})
    assert config.num_kv_heads == kv_heads
    assert config.head_dim == (64 // heads if head_dim == 8 else head_dim)
    assert (config.rms_norm_eps, config.rope.theta) == (eps, theta)
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (context, tied)
    assert all(source != "given" for _, _, source in config.described())
    assert config.sources["rms_norm_eps"].startswith("default")
    assert config.notes == ()


@families
@pytest.mark.parametrize("key", TINY)
@pytest.mark.parametrize("value", [..., None])
def test_sizes_have_no_default(family, key, value):
    assert f"config.json: {key}: it is absent" in refusal(tiny(family, **{key: value}), ConfigError)


@families
def test_null_kv_heads_are_as_many_as_heads(family):
    # S14
    assert parse(tiny(family, num_key_value_heads=None)).num_kv_heads == 4
    message = refusal(tiny(family, num_key_value_heads=3), ConfigError)
    assert "num_key_value_heads: expected a divisor" in message and "(4), found 3" in message


@families
def test_head_dim_is_read(family):
    # S04
    config = parse(tiny(family))
    assert (config.head_dim, config.sources["head_dim"]) == (10, "config.json")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_configs_are_accepted(name):
    source = PUBLIC[name]
    config = parse(source)
    assert config.model_type == source["model_type"]
    assert config.num_layers == source["num_hidden_layers"]
    assert all(source != "given" for _, _, source in config.described())


@families
def test_classes_of_the_family_are_known(family):
    start, base = CLASSES[family]
    for name in (f"{start}ForCausalLM", f"{base}Model"):
        assert parse(tiny(family, architectures=[name])).model_type == family
    message = refusal(tiny(family, architectures=[f"{start}ForSequenceClassification"]))
    assert f"{start}ForSequenceClassification" in message and f"{start}ForCausalLM" in message


#: Keys that change a model, with a value that would, and the families that have them.
KEYS = {
    "sliding_window": (8, "mistral qwen2 qwen3 smollm3 gemma2 gemma3_text phi3"),
    "use_sliding_window": (True, "qwen2 qwen3 smollm3"),
    "max_window_layers": (1, "qwen2 qwen3 smollm3"),
    "no_rope_layers": ([1, 0], "smollm3"),
    "no_rope_layer_interval": (2, "smollm3"),
    "attention_bias": (True, "llama qwen3 smollm3 gemma gemma2 gemma3_text olmo2 granite"),
    "mlp_bias": (True, "llama smollm3 granite"),
    "query_pre_attn_scalar": (16, "gemma2 gemma3_text"),
    "attn_logit_softcapping": (50.0, "gemma2"),
    "final_logit_softcapping": (30.0, "gemma2 gemma3_text"),
    "embedding_multiplier": (12.0, "granite"),
    "attention_multiplier": (0.5, "granite"),
    "residual_multiplier": (0.22, "granite"),
    "logits_scaling": (8.0, "granite"),
    "sliding_window_pattern": (2, "gemma3_text"),
    "rope_local_base_freq": (1e4, "gemma3_text"),
    "clip_qkv": (8.0, ""),
    "use_qk_norm": (True, ""),
    "use_bidirectional_attention": (True, ""),
    "use_mrope": (True, ""),
    "num_local_experts": (8, ""),
    "attention_sinks": (4, ""),
    "attention_chunk_size": (8192, ""),
    "rope_interleaved": (True, ""),
    "quantization_config": ({"quant_method": "fp8"}, ""),
}


@families
@pytest.mark.parametrize("key", KEYS)
def test_keys_of_other_families_are_refused_by_name(family, key):
    value, known_to = KEYS[key]
    if family in known_to.split():
        parse(tiny(family, **{key: value}))
    else:
        assert key in refusal(tiny(family, **{key: value}))
        parse(tiny(family, **{key: None}))


@families
@pytest.mark.parametrize("key", ["hidden_act", "hidden_activation"])
@pytest.mark.parametrize("value", ["relu", "gelu_new", "gelu_fast", ["silu"], 1])
def test_other_activations_are_refused_by_name(family, key, value):
    message = refusal(tiny(family, **{key: value}))
    assert key in message and str(value) in message


@families
@pytest.mark.parametrize(
    "kinds",
    [["full_attention", "chunked_attention"], ["linear_attention"] * 2, [None, 3], [{}, []]],
)
def test_other_kinds_of_layers_are_refused_by_name(family, kinds):
    message = refusal(tiny(family, layer_types=kinds))
    assert "layer_types" in message
    assert repr(next(kind for kind in kinds if kind != "full_attention")) in message


@families
@pytest.mark.parametrize("kinds", [["full_attention"], ["full_attention"] * 3, "full_attention", 2])
def test_layer_types_have_one_entry_a_layer(family, kinds):
    message = refusal(tiny(family, layer_types=kinds), ConfigError)
    assert "layer_types: expected 2 entries" in message


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma", "olmo2", "granite", "phi3"])
def test_layers_that_the_class_makes_alike_are_alike(family):
    kind = parse(tiny(family)).layers[0].attention
    assert parse(tiny(family, layer_types=[kind] * 2)) == parse(tiny(family))
    mixed = refusal(tiny(family, layer_types=["full_attention", "sliding_attention"]))
    assert f"layer_types: expected {kind} for each layer" in mixed


@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True, 2**31])
@pytest.mark.parametrize("family", ["mistral", "qwen2", "smollm3", "gemma2", "gemma3_text", "phi3"])
def test_windows_that_cannot_be_right(family, value):
    assert "sliding_window" in refusal(tiny(family, sliding_window=value), ConfigError)


@pytest.mark.parametrize(
    "name, what",
    [
        ("mixtral", "mixture of experts"),
        ("qwen2_moe", "mixture of experts"),
        ("qwen3_moe", "mixture of experts"),
        ("granitemoe", "mixture of experts"),
        ("phimoe", "mixture of experts"),
        ("olmoe", "mixture of experts"),
        ("llama4", "mixture of experts"),
        ("gpt_oss", "mixture of experts"),
        ("deepseek_v2", "mixture of experts"),
        ("deepseek_v3", "mixture of experts"),
        ("qwen3_next", "recurrent state"),
        ("gemma3", "gemma3_text"),
        ("gemma3n", "text and images"),
        ("mllama", "text and images"),
        ("gpt2", "this architecture is not supported"),
    ],
)
def test_relatives_are_refused_with_what_they_are(name, what):
    message = refusal({**TINY, "model_type": name})
    assert f"found {name!r}" in message and what in message
    assert all(family in message for family in FAMILIES)


@families
def test_nothing_but_config_errors_escapes(family):
    rng = random.Random(family)
    junk = [
        None, True, False, 0, 1, -1, 2**31, 10**60, 0.5, -0.0, 1e308, float("nan"), "", "silu",
        "gelu", [], [None], [[]], {}, {"a": 1}, [1, 0], [True, False], [1, 0, 2], [0.0, 1.0],
        ["full_attention", "sliding_attention"], {"rope_type": "linear", "factor": 2},
    ]  # fmt: skip
    keys = [*TINY, *KEYS, "head_dim", "num_key_value_heads", "layer_types", "rope_parameters"]
    keys += ["rope_scaling", "rope_theta", "hidden_act", "hidden_activation", "rms_norm_eps"]
    keys += ["pretraining_tp", "tie_word_embeddings", "max_position_embeddings", "\x00"]
    accepted = 0
    for _ in range(500):
        changed = rng.sample(keys, rng.randint(1, 2))
        config = tiny(family, **{key: rng.choice(junk) for key in changed})
        try:
            parse(config)
            accepted += 1
        except KestrelError as error:
            assert isinstance(error, ConfigError)
    assert 0 < accepted < 500
