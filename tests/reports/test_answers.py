"""User reports S08, S22, S23, S26, S32, S33 through a whole model: ends, text, seeds, logprobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint

import kestrel
from kestrel import SamplingParams
from kestrel.engine.request import Finished
from kestrel.inspection import inspect_folder

WORDS = ("once", "end", "stop", "alpha", "beta", "gamma", "delta")
PROMPT = [0]


def in_order(*ids: int, **options: object) -> SamplingParams:
    """Options that make any model write these ids: the bias falls, what was written is banned."""
    bias = {token: 1e6 - 1e5 * place for place, token in enumerate(ids)}
    return SamplingParams(
        temperature=0.0, logit_bias=bias, presence_penalty=1e7, max_tokens=len(ids), **options
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """S08: config.json says that 1 ends an answer, generation_config.json says 1 and 2."""
    config = tiny_llama_config(vocab_size=len(WORDS), eos_token_id=1)
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(WORDS)},
                  "unk_token": "once"},
    }  # fmt: skip
    return write_checkpoint(
        tmp_path_factory.mktemp("words"), config, tiny_llama_tensors(config, seed=7),
        generation_config={"eos_token_id": [1, 2]}, tokenizer=tokenizer,
    )  # fmt: skip


@pytest.fixture(scope="module")
def words(folder: Path):
    with kestrel.load(folder, threads=1) as model:
        yield model


def test_s08_every_source_of_end_tokens_ends_an_answer(words: kestrel.Model) -> None:
    for end in (1, 2):
        answer = words.generate(PROMPT, in_order(3, end, 4))
        assert (answer.ids, answer.text, answer.reason) == ([3, end], " alpha", "stop")
        answer = words.generate(PROMPT, in_order(3, end, 4, ignore_eos=True))
        assert (answer.ids, answer.reason) == ([3, end, 4], "length")


def test_s08_inspect_says_where_each_end_token_is_from(folder: Path) -> None:
    ends = {row["id"]: row["sources"] for row in inspect_folder(folder)["generation"]["end_tokens"]}
    assert ends == {
        1: ["config.json eos_token_id", "generation_config.json eos_token_id"],
        2: ["generation_config.json eos_token_id"],
    }


def test_s26_alpha_beta_gamma(words: kestrel.Model) -> None:
    """Stop "beta gamma": "alpha " and nothing more, streamed or not."""
    params = in_order(3, 4, 5, stop=("beta gamma",))
    answer = words.generate(PROMPT, params)
    assert (answer.text, answer.reason) == (" alpha ", "stop")
    pieces = [event.text for event in words.stream(PROMPT, params) if hasattr(event, "text")]
    assert pieces == [" alpha", " ", ""]
    other = words.generate(PROMPT, in_order(3, 4, 6, stop=("beta gamma",)))
    assert (other.text, other.reason) == (" alpha beta delta", "length")


def test_s23_ended_early_and_invalid_are_told_apart() -> None:
    """Both show U+FFFD; the note of the answer says which it was."""
    with kestrel.load(threads=1) as model:
        smile = model.tokenizer.encode("🙂", add_special_tokens=False)
        assert len(smile) == 4
        whole = model.generate("Once ", in_order(*smile))
        cut = model.generate("Once ", in_order(*smile[:3]))
        letter = model.tokenizer.encode("a", add_special_tokens=False)
        broken = model.generate("Once ", in_order(*smile[:2], *letter))
    assert (whole.text, whole.note) == ("🙂", "")
    assert (cut.text, cut.note) == ("\ufffd", "the text ends inside a character")
    assert broken.text == "\ufffda"
    assert broken.note == "the text has bytes that belong to no character"


def test_s32_a_stream_tells_the_seed_that_it_drew(words: kestrel.Model) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=20, ignore_eos=True)
    *tokens, end = words.stream(PROMPT, params)
    assert isinstance(end, Finished) and isinstance(end.seed, int)
    again = words.generate(PROMPT, params.replace(seed=end.seed))
    assert again.ids == [token.id for token in tokens] and again.seed == end.seed
    *_, greedy = words.stream(PROMPT, params.replace(temperature=0.0))
    assert greedy.seed is None


def test_s33_raw_logprobs_are_the_scores_of_the_text(words: kestrel.Model) -> None:
    """However the tokens were drawn: the same bits as from `score`."""
    params = SamplingParams(temperature=0.5, top_k=3, seed=3, max_tokens=12, ignore_eos=True,
                            logprobs=0)  # fmt: skip
    answer = words.generate(PROMPT, params)
    assert words.score(PROMPT + answer.ids) == answer.logprobs


@pytest.fixture
def copy(demo_model: Path, tmp_path: Path) -> Path:
    """The demo model, to be changed."""
    return Path(shutil.copytree(demo_model, tmp_path / "demo"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"add_bos_token": False}, "add_bos_token is false, the post-processor of tokenizer.json "
         "adds one"),
        ({"add_eos_token": True}, "add_eos_token is true, the post-processor of tokenizer.json "
         "adds none"),
        ({"add_bos_token": True, "add_eos_token": False}, None),
    ],
)  # fmt: skip
def test_s22_the_post_processor_decides_about_bos(
    copy: Path, flags: dict[str, bool], said: str | None
) -> None:
    """And where another setting contradicts it, that is said: transformers follows the setting."""
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **flags}))
    with kestrel.load(copy, threads=1) as model:
        assert model.encode("Once") == [0, 3895]
        notes = [note for note in model.notes if "post-processor" in note]
    assert [said in note for note in notes] == ([True] if said else [])
    path.write_text(json.dumps({"add_bos_token": "no"}))
    with pytest.raises(kestrel.errors.TokenizerError, match="add_bos_token: expected true or"):
        kestrel.load(copy)
