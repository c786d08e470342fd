"""config.json to DecoderConfig: values, defaults, sources, and values that cannot be right."""

import random

import pytest
from checkpoints import tiny_llama_config
from unit.llama_configs import PUBLIC_CONFIGS

from kestrel.errors import ConfigError, KestrelError, RequestError, UnsupportedModelError
from kestrel.models import Limits, family_for
from kestrel.models.checks import default_attention_scale
from kestrel.models.config import DecoderConfig

SMALLEST = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def parse(config: dict, file: object = None) -> DecoderConfig:
    return family_for(config, file).parse(config, file)


def test_a_full_config_is_taken_as_written():
    config = parse(tiny_llama_config(attention_bias=True, rms_norm_eps=3e-5, head_dim=16))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (64, 32, 48)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert config.head_dim == 16  # S04: not hidden_size / num_attention_heads
    assert (config.rms_norm_eps, config.rope.theta) == (3e-5, 10000.0)
    assert (config.attention_bias, config.mlp_bias) == (True, False)
    assert config.attention_scale == 0.25
    assert config.sources["head_dim"] == "config.json"
    assert config.notes == ()


def test_absent_fields_take_the_defaults_of_transformers_and_say_so():
    # S11, S14 and LlamaConfig's signature
    config = parse(SMALLEST)
    assert config.rms_norm_eps == 1e-6
    assert config.num_kv_heads == 4
    assert config.head_dim == 8
    assert config.max_position_embeddings == 2048
    assert (config.rope.type, config.rope.theta) == ("default", 10000.0)
    flags = (config.tie_word_embeddings, config.attention_bias, config.mlp_bias)
    assert flags == (False, False, False)
    assert config.sources["num_key_value_heads"] == "implied by num_attention_heads"
    assert config.sources["head_dim"] == "implied by hidden_size / num_attention_heads"
    for name in ("rms_norm_eps", "rope_theta", "max_position_embeddings", "mlp_bias"):
        assert config.sources[name].startswith("default"), name
    assert all(source != "given" for _, _, source in config.described())


@pytest.mark.parametrize("key", sorted(set(SMALLEST) - {"model_type"}))
@pytest.mark.parametrize("null", [False, True])
def test_sizes_have_no_default(key, null):
    config = {k: v for k, v in SMALLEST.items() if k != key} | ({key: None} if null else {})
    with pytest.raises(ConfigError, match=f"^m/config.json: {key}: it is absent") as caught:
        parse(config, "m/config.json")
    assert (caught.value.key, caught.value.file) == (key, "m/config.json")


def test_a_forgotten_context_length_is_noted():
    notes = parse(PUBLIC_CONFIGS["vicuna-13b-16k"]).notes
    assert len(notes) == 1 and "16384" in notes[0] and "4096" in notes[0]
    assert parse(PUBLIC_CONFIGS["llama-1-7b"]).notes == ()


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "4", "3"]),  # S14
        ({"num_key_value_heads": 8}, ["num_key_value_heads", "4", "8"]),
        ({"num_key_value_heads": 0}, ["num_key_value_heads", "0"]),
        ({"head_dim": 7}, ["head_dim", "even", "7"]),
        ({"head_dim": None, "hidden_size": 33}, ["hidden_size", "33", "4"]),
        ({"head_dim": None, "hidden_size": 12}, ["head_dim", "even", "3"]),
        ({"head_dim": 2**31}, ["head_dim"]),
        ({"num_hidden_layers": 10**30}, ["num_hidden_layers", "10,000"]),
        ({"num_hidden_layers": 10**99}, ["num_hidden_layers", "..."]),
        ({"num_hidden_layers": 10_001}, ["num_hidden_layers", "10,000", "10001"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_hidden_layers": 2.0}, ["num_hidden_layers", "integer", "2.0"]),
        ({"num_attention_heads": 2**31 - 1, "num_key_value_heads": 1}, ["num_attention_heads"]),
        ({"vocab_size": 2**31}, ["vocab_size"]),
        ({"vocab_size": -1}, ["vocab_size", "-1"]),
        ({"vocab_size": True}, ["vocab_size", "True"]),
        ({"hidden_size": "32"}, ["hidden_size", "'32'"]),
        ({"intermediate_size": [48]}, ["intermediate_size", "[48]"]),
        ({"max_position_embeddings": 0}, ["max_position_embeddings"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps", "above 0"]),
        ({"rms_norm_eps": -1e-5}, ["rms_norm_eps"]),
        ({"rms_norm_eps": 1e-50}, ["rms_norm_eps", "float32"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan"]),
        ({"rms_norm_eps": float("inf")}, ["rms_norm_eps", "inf"]),
        ({"rms_norm_eps": 10**400}, ["rms_norm_eps"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps", "'1e-5'"]),
        ({"rms_norm_eps": True}, ["rms_norm_eps", "True"]),
        ({"tie_word_embeddings": 1}, ["tie_word_embeddings", "true or false", "1"]),
        ({"attention_bias": "false"}, ["attention_bias", "'false'"]),
        ({"rope_theta": 0}, ["rope_theta", "above 0"]),
        ({"rope_theta": 1e39}, ["rope_theta", "float32"]),
        ({"rope_theta": False}, ["rope_theta", "False"]),
    ],
)
def test_values_that_cannot_be_right(changes, parts):
    config = {**tiny_llama_config(), **changes}
    with pytest.raises(ConfigError) as caught:
        parse(config, "here/config.json")
    message = str(caught.value)
    assert message.startswith("here/config.json: ")
    assert all(part in message for part in parts), message
    assert len(message) < 400


@pytest.mark.parametrize("head_dim", [2, 16, 48, 64, 80, 96, 128, 192, 256, 65536])
def test_attention_scale_is_the_float32_nearest_to_the_root(head_dim):
    # scale is nearest when no float32 neighbour lies closer: exact in integers, s² D against 1.
    from fractions import Fraction

    import numpy as np

    scale = np.float32(default_attention_scale(head_dim))
    assert float(scale) == default_attention_scale(head_dim)
    for direction, sign in ((np.float32(0), 1), (np.float32(np.inf), -1)):
        other = np.nextafter(scale, direction)
        middle = (Fraction(float(scale)) + Fraction(float(other))) / 2
        # The root lies on our side of the midpoint: middle < root below, middle > root above.
        assert sign * (1 - middle**2 * head_dim) > 0


def test_nothing_but_config_errors_escapes():
    rng = random.Random(20)
    junk = [
        None, True, False, 0, 1, -1, 2**31, 10**60, 0.5, -0.0, 1e308, float("nan"), "", "x",
        "llama", [], [None], [[]], {}, {"a": 1}, {"rope_type": "linear"}, {"type": 3},
        {"rope_type": "llama3", "factor": 1, "low_freq_factor": 1, "high_freq_factor": 1e-38,
         "original_max_position_embeddings": 2**31 - 1},
    ]  # fmt: skip
    keys = [*tiny_llama_config(), "rope_scaling", "rope_parameters", "partial_rotary_factor"]
    keys += ["rotary_dim", "layer_types", "quantization_config", "auto_map", "sliding_window"]
    keys += ["max_sequence_length", "pruned_heads", "\x00", "é" * 300, "original_rope"]
    accepted = 0
    for _ in range(3000):
        config = tiny_llama_config()
        for key in rng.sample(keys, rng.randint(1, 3)):
            config[key] = rng.choice(junk)
        try:
            parse(config, "config.json")
            accepted += 1
        except KestrelError as error:
            assert isinstance(error, ConfigError)
    assert 0 < accepted < 3000


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"model_type": "Llama"}, ["model_type", "'Llama'", "llama"]),
        ({"model_type": None}, ["model_type", "absent", "llama"]),
        ({"model_type": ["llama"]}, ["model_type", "['llama']"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClass"]),
        ({"architectures": ["LlamaForCausalLM", "X"]}, ["architectures", "'X'"]),
    ],
)
def test_other_architectures_are_refused_by_name(changes, parts):
    with pytest.raises(UnsupportedModelError) as caught:
        parse({**tiny_llama_config(), **changes}, "config.json")
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("classes", ["LlamaForCausalLM", [], {}, 3])
def test_architectures_must_be_a_list(classes):
    with pytest.raises(ConfigError, match="architectures: expected a list"):
        parse(tiny_llama_config(architectures=classes))


@pytest.mark.parametrize("classes", [None, ["LlamaModel"], ["LLaMAForCausalLM"]])
def test_older_and_partial_architectures_are_read(classes):
    assert parse(tiny_llama_config(architectures=classes)).model_type == "llama"


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"max_tokens": 0}, ["max_tokens", "0"]),
        ({"max_tokens": None}, ["max_tokens", "None"]),
        ({"max_seqs": -1}, ["max_seqs", "-1"]),
        ({"max_seqs": True}, ["max_seqs", "True"]),
        ({"max_context": 1.5}, ["max_context", "1.5"]),
        ({"max_context": 2**31}, ["max_context"]),
        ({"cache_bytes": 0}, ["cache_bytes"]),
        ({"max_logit_rows": 9, "max_tokens": 8, "max_seqs": 1}, ["max_logit_rows", "8", "9"]),
        ({"max_seqs": 9, "max_tokens": 8}, ["max_seqs", "max_tokens (8)", "9"]),
    ],
)
def test_limits_out_of_range(options, parts):
    with pytest.raises(RequestError) as caught:
        Limits(**options)
    assert all(part in str(caught.value) for part in parts)


def test_limits_defaults_and_extremes():
    limits = Limits()
    assert (limits.max_tokens, limits.max_seqs) == (512, 16)
    assert (limits.max_context, limits.cache_bytes, limits.max_logit_rows) == (None, None, None)
    smallest = Limits(cache_bytes=2**40, max_tokens=1, max_seqs=1, max_logit_rows=1)
    assert smallest.cache_bytes == 2**40
