"""Every key of a config.json is used, known to be harmless, or refused by name."""

import pytest
from checkpoints import tiny_llama_config

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.generation_rules import RULES
from kestrel.models import family_for
from kestrel.models.generic_keys import GENERATION_KEYS, NEUTRAL_VALUES, WITHOUT_EFFECT


def parse(**changes):
    config = {**tiny_llama_config(), **changes}
    return family_for(config).parse(config, "config.json")


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"hidden_act": "gelu"}, ["hidden_act", "silu", "'gelu'"]),
        ({"hidden_act": ["silu"]}, ["hidden_act", "silu"]),
        ({"pretraining_tp": 2}, ["pretraining_tp", "2"]),
        ({"is_encoder_decoder": True}, ["is_encoder_decoder", "True"]),
        ({"add_cross_attention": True}, ["add_cross_attention", "True"]),
        ({"tie_encoder_decoder": True}, ["tie_encoder_decoder"]),
        ({"sliding_window": 4096}, ["sliding_window", "4096"]),
        ({"use_sliding_window": True}, ["use_sliding_window"]),
        ({"pruned_heads": {"0": [1]}}, ["pruned_heads"]),
        ({"per_layer_config": {"0": {"head_dim": 4}}}, ["per_layer_config"]),
        ({"prefix": "Translate: "}, ["prefix"]),
        ({"rope_interleaved": True}, ["rope_interleaved"]),
        ({"is_llama_config": 1}, ["is_llama_config", "1"]),
        ({"layer_types": ["sliding_attention", "full_attention"]}, ["layer_types", "sliding"]),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, ["auto_map", "modeling_x.X"]),
        ({"auto_map": "x"}, ["auto_map"]),
        # S13
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "float"}},
            ["quantization_config", "'compressed-tensors'", "quantized"],
        ),
        ({"quantization": {"group_size": 64, "bits": 4}}, ["quantization", "'bits': 4"]),
        ({"quantization_config": {}}, ["quantization_config", "{}"]),
        ({"compression_config": {"format": "dense"}}, ["compression_config"]),
    ],
)
def test_settings_that_would_change_the_model(changes, parts):
    with pytest.raises(UnsupportedModelError) as caught:
        parse(**changes)
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert all(part in message for part in parts), message
    assert caught.value.key == next(iter(changes))


@pytest.mark.parametrize("value", [True, False, 0, "", {}, [], 1.5, "full"])
def test_unknown_keys_are_refused_whatever_they_hold(value):
    with pytest.raises(UnsupportedModelError, match="logit_softcap") as caught:
        parse(logit_softcap=value)
    assert caught.value.key == "logit_softcap"
    assert repr(value) in str(caught.value)


def test_a_misspelled_key_gets_a_hint():
    with pytest.raises(UnsupportedModelError, match=r"rope_thetta = 1 \(meant: rope_theta\?\)"):
        parse(rope_thetta=1)


def test_all_unknown_keys_are_named_and_many_are_counted():
    with pytest.raises(UnsupportedModelError) as caught:
        parse(**{f"strange_{i}": i for i in range(9)})
    message = str(caught.value)
    assert "strange_0 = 0" in message and "strange_4 = 4" in message
    assert "strange_5" not in message and "4 more" in message


def test_a_long_value_does_not_flood_the_message():
    with pytest.raises(UnsupportedModelError) as caught:
        parse(strange=["x"] * 10_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("key", sorted(WITHOUT_EFFECT))
def test_harmless_keys_pass_and_change_nothing(key):
    plain = tiny_llama_config()
    plain.pop(key, None)
    assert parse(**{key: 0.125}) == family_for(plain).parse(plain)


@pytest.mark.parametrize("key", sorted(NEUTRAL_VALUES))
def test_neutral_values_and_null_pass(key):
    for value in (None, *NEUTRAL_VALUES[key][0]):
        assert parse(**{key: value}) == parse()
    with pytest.raises(UnsupportedModelError, match=key):
        parse(**{key: "something"})


@pytest.mark.parametrize("key", sorted(GENERATION_KEYS))
def test_generation_settings_change_nothing_of_the_model(key):
    assert parse(**{key: 0.5}) == parse()
    assert key in RULES  # which says what becomes of it


@pytest.mark.parametrize(
    "changes",
    [
        {"_name_or_path": "x/y", "_anything": {"a": 1}},
        {"hidden_act": "swish"},  # another name of the same function in transformers
        {"layer_types": ["full_attention", "full_attention"]},
        {"auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}},
        {"auto_map": None, "quantization_config": None, "sliding_window": None, "unknown": None},
        {"hidden_act": None},
    ],
)
def test_settings_that_say_what_is_so_anyway(changes):
    assert parse(**changes) == parse()


@pytest.mark.parametrize(
    "kinds, found", [(["full_attention"] * 3, "3"), ([], "0"), ("full_attention", "'full_att")]
)
def test_layer_types_must_be_one_per_layer(kinds, found):
    with pytest.raises(ConfigError, match=rf"layer_types: expected 2 entries .*found {found}"):
        parse(layer_types=kinds)


def test_tables_do_not_overlap():
    tables = [set(WITHOUT_EFFECT), set(GENERATION_KEYS), set(NEUTRAL_VALUES)]
    assert sum(map(len, tables)) == len(set.union(*tables))
