"""generation_config.json: what is followed, noted or refused; the union of end tokens (S08)."""

import json

import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint

import kestrel
from kestrel.errors import ConfigError
from kestrel.generation import RULES, default_params, end_token_ids, generation_notes
from kestrel.inspection import inspect_folder
from kestrel.sampling import SamplingParams
from kestrel.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize(
    "config", [None, {}, {"do_sample": False}, {"do_sample": None}, {"eos_token_id": 2}]
)
def test_greedy_unless_do_sample_is_true(config):
    params, sources = default_params(config)
    assert params == GREEDY and params.is_greedy
    assert "do_sample: true" in sources["temperature"]
    assert sources["top_k"] == "default"


def test_defaults_of_transformers_where_do_sample_is_true():
    params, sources = default_params({"do_sample": True})
    assert params == SamplingParams(temperature=1.0, top_k=50, top_p=1.0)
    assert sources["top_k"] == "transformers' default where do_sample is true"
    assert sources["seed"] == "default"
    assert set(sources) == set(SamplingParams.__dataclass_fields__)


def test_null_is_the_same_as_absent():
    assert default_params({"do_sample": True, "top_k": None})[0].top_k == 50


def test_the_demo_model(demo_model):
    config = json.loads((demo_model / "generation_config.json").read_text())
    params, sources = default_params(config)
    assert params == SamplingParams(
        temperature=0.7, top_p=0.9, top_k=50, repetition_penalty=1.05
    )
    assert sources["temperature"] == "generation_config.json temperature"
    assert generation_notes(config) == []


def test_everything_that_is_followed():
    config = {
        "do_sample": True, "temperature": 0.5, "top_k": 0, "top_p": 0.25, "min_p": 0.125,
        "repetition_penalty": 1.5, "max_new_tokens": 7, "stop_strings": ["a", "b"],
    }
    params, sources = default_params(config)
    assert params == SamplingParams(
        temperature=0.5, top_k=0, top_p=0.25, min_p=0.125, repetition_penalty=1.5, max_tokens=7,
        stop=("a", "b"),
    )
    assert sources["max_tokens"] == "generation_config.json max_new_tokens"
    assert sources["stop"] == "generation_config.json stop_strings"
    assert default_params({"stop_strings": "end"})[0].stop == ("end",)


def test_sampling_options_without_do_sample_are_noted_not_used():
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1}
    params, _ = default_params(config)
    assert params == GREEDY.replace(repetition_penalty=1.1)  # a processor: acts in greedy too
    assert generation_notes(config) == [
        "generation_config.json: temperature 0.6 is not used: do_sample is not true",
        "generation_config.json: top_p 0.9 is not used: do_sample is not true",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 4), ("num_beam_groups", 2), ("penalty_alpha", 0.6), ("dola_layers", "high"),
        ("no_repeat_ngram_size", 3), ("bad_words_ids", [[1]]), ("forced_bos_token_id", 0),
        ("forced_eos_token_id", 2), ("suppress_tokens", [1]), ("begin_suppress_tokens", [1]),
        ("sequence_bias", [[[1], 2.0]]), ("guidance_scale", 1.5), ("min_length", 3),
        ("min_new_tokens", 1), ("exponential_decay_length_penalty", [5, 1.1]), ("max_time", 3.0),
        ("encoder_repetition_penalty", 1.2), ("token_healing", True), ("num_beams", True),
        ("cache_implementation", "quantized"),
        ("watermarking_config", {"bias": 1.0}), ("force_words_ids", [[1]]), ("top_z", 1),
    ],
)
@pytest.mark.parametrize("do_sample", [True, False])
def test_what_would_change_the_answer_is_refused_by_name(name, value, do_sample):
    for read in (default_params, generation_notes):
        with pytest.raises(ConfigError) as caught:
            read({"do_sample": do_sample, name: value})
        assert caught.value.key == name
        assert str(caught.value).startswith(f"generation_config.json: {name}: ")
        assert f"found {value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("typical_p", 0.9), ("epsilon_cutoff", 3e-4), ("eta_cutoff", 1e-3), ("top_h", 0.4)],
)
def test_other_samplers_matter_only_where_sampling_is_on(name, value):
    with pytest.raises(ConfigError, match=f"^generation_config.json: {name}: expected .* or null|"
                       f"^generation_config.json: {name}: expected null"):
        default_params({"do_sample": True, name: value})
    assert default_params({name: value})[0] == GREEDY
    assert len(generation_notes({name: value})) == 1


def test_messages_in_full():
    with pytest.raises(ConfigError) as caught:
        default_params({"num_beams": 4})
    assert str(caught.value) == (
        "generation_config.json: num_beams: expected 1 or null, found 4: beam search is not "
        "implemented, and would change the answer; remove the key to go without it"
    )
    with pytest.raises(ConfigError) as caught:
        default_params({"suppress_tokens": list(range(4096))})
    # The value is cut to 60 characters, three dots at their end.
    assert str(caught.value) == (
        "generation_config.json: suppress_tokens: expected [] or null, found [0, 1, 2, 3, 4, 5, "
        "6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16...: blocking of tokens is not implemented, and "
        "would change the answer; remove the key to go without it, and ban the tokens with "
        "logit_bias -inf"
    )
    with pytest.raises(ConfigError, match="not known, perhaps meant as 'temperature', found 0.5"):
        default_params({"temprature": 0.5})
    with pytest.raises(ConfigError) as caught:
        default_params({"do_sample": True, "top_k": -1})
    assert str(caught.value) == (
        "generation_config.json: top_k: expected an integer of at least 0 (0 turns it off), "
        "found -1"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_length", 4096, "an answer ends at max_tokens or at the context limit"),
        ("early_stopping", True, "only beam search"),
        ("length_penalty", 2.0, "only beam search"),
        ("num_return_sequences", 3, "one answer"),
        ("remove_invalid_values", True, "an error"),
    ],
)
def test_what_is_noted(name, value, words):
    assert default_params({name: value})[0] == GREEDY
    (note,) = generation_notes({name: value})
    assert note.startswith(f"generation_config.json: {name} {value!r} is not followed: ")
    assert words in note


@pytest.mark.parametrize("name", sorted(RULES))
def test_neutral_values_and_null_pass_without_a_word(name):
    for value in (None, *RULES[name].neutral):
        assert generation_notes({name: value}) == []
        assert generation_notes({"do_sample": True, **{name: value}}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("do_sample", 1), ("do_sample", "true"), ("temperature", "hot"), ("top_p", 2),
     ("max_new_tokens", 0), ("repetition_penalty", 0), ("stop_strings", [""]), ("top_k", 1.5)],
)
def test_wrong_types_and_ranges(name, value):
    with pytest.raises(ConfigError, match=f"^generation_config.json: {name}") as caught:
        default_params({"do_sample": True, name: value})
    assert caught.value.key == name


def test_end_tokens_are_the_union_of_all_places(demo_model):
    # S08: config says 1, generation_config says [1, 2]; and the tokenizer names 1 too.
    tokenizer = Tokenizer.from_folder(demo_model)
    assert end_token_ids({"eos_token_id": 1}, {"eos_token_id": [2, 1, 1]}, tokenizer) == {
        1: [
            "config.json eos_token_id",
            "generation_config.json eos_token_id",
            "tokenizer_config.json eos_token '<|eos|>'",
        ],
        2: ["generation_config.json eos_token_id"],
    }
    assert end_token_ids({"eos_token_id": 7}, None) == {7: ["config.json eos_token_id"]}
    assert end_token_ids({}, {"eos_token_id": None}) == {}
    assert list(end_token_ids({"eos_token_id": [9, 3]}, {})) == [3, 9]


@pytest.mark.parametrize("value", [True, "2", 2.0, -1, [1, None], [[1]], {"id": 2}])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_end_tokens_of_the_wrong_type(file, value):
    configs = {"config.json": {}, "generation_config.json": {}}
    configs[file] = {"eos_token_id": value}
    with pytest.raises(ConfigError) as caught:
        end_token_ids(configs["config.json"], configs["generation_config.json"])
    assert str(caught.value).startswith(f"{file}: eos_token_id: expected a token id")
    assert caught.value.key == "eos_token_id"


@pytest.mark.parametrize(
    ("name", "config", "generation"),
    [
        ("config.json", {"eos_token_id": "two"}, {}),
        ("generation_config.json", {}, {"eos_token_id": -1}),
        ("generation_config.json", {}, {"do_sample": True, "temperature": "hot"}),
        ("generation_config.json", {}, {"num_beams": 4}),
    ],
)
def test_errors_of_a_folder_name_its_file(tmp_path, demo_model, name, config, generation):
    config = {**tiny_llama_config(vocab_size=4096), **config}
    folder = write_checkpoint(
        tmp_path / "m", config, tiny_llama_tensors(config, 1), generation_config=generation,
        tokenizer=demo_model,
    )  # fmt: skip
    for read in (kestrel.load, inspect_folder):
        with pytest.raises(ConfigError) as caught:
            read(folder)
        assert str(caught.value).startswith(f"{folder / name}: ")
        assert caught.value.file == str(folder / name)
        assert caught.value.key in {**config, **generation}


@pytest.mark.reference
def test_every_key_that_transformers_writes_is_in_the_table():
    transformers = pytest.importorskip("transformers")
    known = vars(transformers.GenerationConfig())
    assert not [name for name in known if name not in RULES]
    defaults = transformers.GenerationConfig._get_default_generation_params()
    assert generation_notes({k: v for k, v in defaults.items() if k in RULES}) == []
    for name in ("temperature", "top_k", "top_p"):
        assert RULES[name].default == defaults[name]
