"""DecoderConfig against transformers' LlamaConfig: the same values from the same file."""

import pytest
from unit.llama_configs import PUBLIC_CONFIGS

from kestrel.models import family_for

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("name", PUBLIC_CONFIGS)
def test_values_equal_llama_config(transformers, name):
    source = PUBLIC_CONFIGS[name]
    expected = transformers.LlamaConfig.from_dict(dict(source))
    config = family_for(source).parse(source)
    same = (
        "vocab_size hidden_size intermediate_size head_dim rms_norm_eps max_position_embeddings "
        "tie_word_embeddings attention_bias mlp_bias"
    )
    for field in same.split():
        assert getattr(config, field) == getattr(expected, field), field
    assert config.num_layers == expected.num_hidden_layers
    assert config.num_heads == expected.num_attention_heads
    assert config.num_kv_heads == expected.num_key_value_heads
    rope = {"rope_type": config.rope.type, "rope_theta": config.rope.theta}
    for field in ("factor", "low_freq_factor", "high_freq_factor"):
        rope[field] = getattr(config.rope, field)
    rope["original_max_position_embeddings"] = config.rope.original_max_position_embeddings
    theirs = {key: value for key, value in expected.rope_parameters.items() if key != "type"}
    assert {key: value for key, value in rope.items() if value is not None} == theirs


def test_every_key_that_llama_config_writes_is_understood(transformers):
    # The full form holds all fields, defaults too.
    written = transformers.LlamaConfig().to_dict()
    written = {**written, "architectures": ["LlamaForCausalLM"]}
    config = family_for(written).parse(written)
    assert (config.hidden_size, config.num_layers) == (4096, 32)
    assert config.notes == ()


def test_generation_settings_are_known_by_name(transformers):
    from kestrel.models.generic_keys import GENERATION_KEYS, WITHOUT_EFFECT

    theirs = set(transformers.GenerationConfig._get_default_generation_params())
    assert theirs - set(WITHOUT_EFFECT) <= GENERATION_KEYS
