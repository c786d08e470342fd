"""Which file says how tokens are chosen and where answers end: config.json or the one beside it."""

import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint

import kestrel
from kestrel.errors import ConfigError
from kestrel.generation import end_token_notes
from kestrel.inspection import inspect_folder
from kestrel.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
#: In the demo model's tokenizer <|eos|> has id 1.
EOS = "tokenizer_config.json eos_token '<|eos|>'"
PROMPT = [5, 6, 7, 8]


@pytest.fixture
def write(tmp_path, demo_model):
    def write_folder(changes, generation_config=None):
        config = tiny_llama_config(**{"vocab_size": 4096, "eos_token_id": 1, **changes})
        return write_checkpoint(
            tmp_path / "m", config, tiny_llama_tensors(config, 1), tokenizer=demo_model,
            generation_config=generation_config,
        )  # fmt: skip

    return write_folder


@pytest.mark.parametrize(
    ("changes", "defaults", "notes"),
    [
        ({}, GREEDY, []),
        ({"repetition_penalty": 1.7}, GREEDY.replace(repetition_penalty=1.7), []),
        (
            {"do_sample": True, "temperature": 0.5, "top_p": 0.25},
            SamplingParams(temperature=0.5, top_k=50, top_p=0.25), [],
        ),
        ({"max_new_tokens": 7, "num_beams": 1, "top_k": 50}, GREEDY.replace(max_tokens=7), []),
        (
            {"top_k": 3, "max_length": 9}, GREEDY,
            ["config.json: top_k 3 is not used: do_sample is not true",
             "config.json: max_length 9 is not followed: an answer ends at max_tokens or at the "
             "context limit"],
        ),
    ],
)  # fmt: skip
def test_config_json_where_it_is_alone(write, changes, defaults, notes):
    with kestrel.load(write(changes), threads=1) as model:
        assert model.defaults == defaults
        assert model.notes == notes
        for name in changes.keys() & {"repetition_penalty", "top_p"}:
            assert model.default_sources[name] == f"config.json {name}"
        assert model.default_sources["temperature"] in (
            "greedy, because config.json does not say do_sample: true", "config.json temperature",
        )  # fmt: skip


REFUSED = {
    "suppress_tokens": [1], "begin_suppress_tokens": [1], "no_repeat_ngram_size": 2,
    "num_beams": 3, "min_length": 5, "bad_words_ids": [[3]], "forced_bos_token_id": 3,
    "forced_eos_token_id": 2, "cache_implementation": "quantized", "diversity_penalty": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_config_json_where_it_is_alone(write, name):
    folder = write({name: REFUSED[name]})
    for read in (kestrel.load, inspect_folder):
        with pytest.raises(ConfigError) as caught:
            read(folder)
        assert str(caught.value).startswith(f"{folder / 'config.json'}: {name}: expected ")
        assert caught.value.file == str(folder / "config.json") and caught.value.key == name


def test_config_json_beside_the_other_file(write):
    """There transformers passes over all of it, and over its end token too."""
    changes = {**REFUSED, "do_sample": True, "temperature": 0.5, "max_length": 20, "num_beams": 1}
    with kestrel.load(write(changes, {"eos_token_id": 1}), threads=1) as model:
        assert model.defaults == GREEDY
        (note,) = model.notes
    assert note.startswith("config.json: bad_words_ids, begin_suppress_tokens, cache_impl")
    assert note.endswith(
        "temperature without effect: where there is a generation_config.json, it alone says how "
        "tokens are chosen, as in transformers"
    )
    assert "max_length" not in note and "num_beams" not in note  # they ask for nothing


@pytest.mark.parametrize(
    ("config", "generation", "others", "followed"),
    [
        ({}, None, None, None),
        ({}, {"eos_token_id": [1, 2]}, None, None),
        ({"eos_token_id": 7}, {"eos_token_id": 1}, "7 (config.json eos_token_id)",
         "generation_config.json alone, eos_token_id 1:"),
        ({"eos_token_id": [1, 7]}, {"eos_token_id": [5, 6]},
         f"1 (config.json eos_token_id; {EOS}), 7 (config.json eos_token_id)",
         "generation_config.json alone, eos_token_id 5, 6:"),
        ({}, {}, f"1 (config.json eos_token_id; {EOS})",
         "generation_config.json alone, eos_token_id none:"),
        ({}, {"eos_token_id": None}, f"1 (config.json eos_token_id; {EOS})",
         "generation_config.json alone, eos_token_id none:"),
        ({"eos_token_id": 7}, None, f"1 ({EOS})", "config.json alone, eos_token_id 7:"),
        ({"eos_token_id": None}, None, f"1 ({EOS})", "config.json alone, eos_token_id none:"),
    ],
)  # fmt: skip
def test_end_tokens_that_transformers_would_pass(write, config, generation, others, followed):
    folder = write(config, generation)
    notes = [] if others is None else [
        f"answers end at {others} too; transformers' generate follows {followed} --ignore-eos and "
        "--stop-token ID (ignore_eos, stop_token_ids) end answers where you say"
    ]  # fmt: skip
    with kestrel.load(folder, threads=1) as model:
        assert model.notes == notes
    assert inspect_folder(folder)["notes"] == notes


def test_an_end_token_of_both_files_needs_no_note():
    places = ["config.json eos_token_id", "generation_config.json eos_token_id"]
    assert end_token_notes({3: places}, "generation_config.json") == []


def test_one_file_alone_is_followed_with_ignore_eos_and_stop_token_ids(write):
    """The greedy answer, up to the first place of the id that is to end it."""
    options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with kestrel.load(write({}), threads=1) as model:
        ids = model.generate(PROMPT, **options).ids
        end = ids[3]
        answer = model.generate(PROMPT, **options, stop_token_ids=(end,))
    assert answer.ids == ids[: ids.index(end) + 1] and answer.reason == "stop"


@pytest.mark.reference
@pytest.mark.parametrize("changes", [
    {}, {"repetition_penalty": 1.7}, {"max_new_tokens": 3}, {"eos_token_id": 7},
    {"temperature": 0.5, "top_k": 1}, {"eos_token_id": None, "repetition_penalty": 3.0},
])  # fmt: skip
@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": [1, 9]}])
def test_as_transformers_reads_them(write, changes, generation):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder = write(changes, generation)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = theirs.generation_config
    with kestrel.load(folder, threads=1) as model:
        penalty = model.defaults.repetition_penalty
        assert penalty == (made.repetition_penalty or 1.0)
        assert model.defaults.max_tokens == made.max_new_tokens
        eos = made.eos_token_id
        eos = [] if eos is None else [eos] if isinstance(eos, int) else eos
        file = "config.json" if generation is None else "generation_config.json"
        places = model.end_ids.items()
        assert [each for each, where in places if f"{file} eos_token_id" in where] == eos
        told = any("transformers' generate follows" in note for note in model.notes)
        assert told == (set(model.end_ids) != set(eos))
        count = model.defaults.max_tokens or 12
        answer = model.generate(PROMPT, ignore_eos=True, stop_token_ids=eos, max_tokens=count)
        prompt = torch.tensor([PROMPT])
        ids = theirs.generate(prompt, max_new_tokens=count, do_sample=False)[0, len(PROMPT):]
        assert answer.ids == ids.tolist()
