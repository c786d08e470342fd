"""Streaming decode: pieces join to what the tokenizers library makes of the whole (S23, S24)."""

import itertools
import json
import random

import pytest
from unit.tokenizer_readme import FOLDERS, lists, opened

from kestrel.errors import TokenizerError
from kestrel.text.incremental import IncrementalDecoder
from kestrel.text.utf8 import Utf8Stream, byte_of_char
from kestrel.tokenizer import Tokenizer

IDS = 100_000
TEXTS = [
    "👩‍👩‍👧‍👦 🏳️‍🌈 naïve ﬁ Å Ωμέγα русский العربية हिन्दी 한국어 日本語",
    "  leading blanks\tand\ttabs\r\n\r\n   \n a",
    "x",
    " x",
    "  x",
    "",
]


def stream(tokenizer, ids, **options):
    decoder = IncrementalDecoder(tokenizer, **options)
    return [decoder.push(token_id) for token_id in ids] + [decoder.flush()], decoder


class RandomIds:
    """Sequences of text, bytes whole and broken, added tokens and ids without text, in runs."""

    def __init__(self, tokenizer: Tokenizer, seed: str) -> None:
        self.draw = draw = random.Random(seed)
        self._size = tokenizer.vocab_size
        fallback = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in range(256)]
        single = fallback if None not in fallback else map(tokenizer.token_id, byte_of_char())
        self._single = [token_id for token_id in single if token_id is not None]
        self._added = [tokenizer.token_id(text) for text in tokenizer.added_tokens]
        texts = ["".join(draw.choices("é日🙂 a€\u0301\ufffd", k=3)) for _ in range(100)]
        self._texts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def __call__(self) -> list[int]:
        draw = self.draw
        ids: list[int] = []
        for _ in range(draw.randrange(1, 9) if draw.random() < 0.99 else 300):
            kind = draw.random()
            if kind < 0.3:
                ids += draw.choices(self._single, k=draw.randrange(1, 6))
            elif kind < 0.6:
                text = draw.choice(self._texts)
                ids += text[: draw.randrange(len(text) + 1)]  # cut within a character, often
            elif kind < 0.7:
                ids.append(draw.choice(self._added))
            elif kind < 0.75:
                ids.append(self._size + draw.randrange(5))
            else:
                ids += [draw.randrange(self._size) for _ in range(draw.randrange(1, 5))]
        return ids


@pytest.mark.parametrize("name", FOLDERS)
def test_random_sequences_join_to_the_whole(shared_models, name):
    tokenizer = opened(shared_models / name)
    random_ids = RandomIds(tokenizer, name)
    done = 0
    for count in itertools.count():
        if done >= IDS:
            break
        ids = random_ids()
        done += len(ids)
        skip = count % 2 == 0
        pieces, _ = stream(tokenizer, ids, skip_special_tokens=skip)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip), ids
        if count % 10 == 0:  # the same as an answer to a prompt
            cut = random_ids.draw.randrange(len(ids) + 1)
            answer, _ = stream(
                tokenizer, ids[cut:], prompt_ids=ids[:cut], skip_special_tokens=skip
            )
            assert answer == pieces[cut:], (ids, cut)


def test_random_sequences_of_the_demo_model(demo_model):
    tokenizer = Tokenizer.from_folder(demo_model)
    random_ids = RandomIds(tokenizer, "demo")
    for _ in range(300):
        ids = random_ids()
        assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("name", FOLDERS)
def test_texts_come_whole_and_without_broken_characters(shared_models, name):
    tokenizer = opened(shared_models / name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        pieces, decoder = stream(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids)
        assert not any("\ufffd" in piece for piece in pieces)
        assert not decoder.ended_early and not decoder.invalid


@pytest.mark.parametrize("name", ["stories260K", "tales-5m", "SmolLM2-135M-Instruct"])
def test_answers_of_the_readmes(shared_models, name):
    tokenizer = opened(shared_models / name)
    for entry in lists(shared_models / name, "greedy_ids"):
        pieces, _ = stream(tokenizer, entry["greedy_ids"])
        assert "".join(pieces) == entry["greedy_text"]


def test_an_answer_keeps_the_blank_that_joins_it_to_its_prompt(shared_models):
    # S24: the first blank is taken off once, at the very beginning, not off the answer.
    tokenizer = opened(shared_models / "tokenizer-mistral-v0.1")
    prompt, whole = tokenizer.encode("Once upon"), tokenizer.encode("Once upon a time")
    assert whole[: len(prompt)] == prompt
    pieces, _ = stream(tokenizer, whole[len(prompt) :], prompt_ids=prompt)
    assert pieces == [" a", " time", ""]
    assert stream(tokenizer, whole[len(prompt) :])[0] == ["a", " time", ""]


def byte_tokens(tokenizer, data):
    """The ids of single bytes, in either kind of vocabulary."""
    char_of = {byte: char for char, byte in byte_of_char().items()}
    ids = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in data]
    return ids if None not in ids else [tokenizer.token_id(char_of[byte]) for byte in data]


@pytest.mark.parametrize(
    ("data", "text", "ended_early", "invalid"),
    [
        ("🙂".encode(), "🙂", False, False),
        ("🙂".encode()[:3], "\ufffd", True, False),
        ("é".encode()[:1], "\ufffd", True, False),
        (b"\xff", "\ufffd", False, True),
        ("é".encode() + b"\xff", "é\ufffd", False, True),
        (b"\xffa" + "é".encode()[:1], "\ufffda\ufffd", True, True),
        (b"\xe2\x82a", "\ufffda", False, True),  # two bytes of three, then a letter
        ("\ufffd".encode(), "\ufffd", False, False),  # the character itself is no error
    ],
)
def test_ended_early_and_invalid_are_told_apart(demo_model, data, text, ended_early, invalid):
    tokenizer = Tokenizer.from_folder(demo_model)
    pieces, decoder = stream(tokenizer, byte_tokens(tokenizer, data))
    assert "".join(pieces) == text
    assert (decoder.ended_early, decoder.invalid) == (ended_early, invalid)


@pytest.mark.parametrize(
    ("data", "text", "ended_early", "invalid"),
    [
        ("é🙂".encode(), "é🙂", False, False),
        ("é🙂".encode()[:4], "\ufffd" * 4, True, False),  # one for each byte of the run
        ("é".encode() + b"\xff", "\ufffd" * 3, False, True),
    ],
)
def test_byte_fallback_waits_for_the_end_of_a_run(
    shared_models, data, text, ended_early, invalid
):
    tokenizer = opened(shared_models / "stories260K")
    ids = byte_tokens(tokenizer, data)
    pieces, decoder = stream(tokenizer, ids)
    assert pieces == [""] * len(ids) + [text] and tokenizer.decode(ids) == text
    assert (decoder.ended_early, decoder.invalid) == (ended_early, invalid)
    pieces, decoder = stream(tokenizer, [*ids, tokenizer.token_id("a")])
    assert pieces == [""] * len(ids) + [text + "a", ""]
    assert (decoder.ended_early, decoder.invalid) == (False, ended_early or invalid)


def with_decoder(demo_model, tmp_path, decoder) -> Tokenizer:
    data = json.loads((demo_model / "tokenizer.json").read_text())
    data["decoder"] = decoder
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    return Tokenizer.from_folder(tmp_path)


STRIP = {"type": "Strip", "content": "e", "start": 2, "stop": 0}
BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True
}
REPLACE = {"type": "Replace", "pattern": {"String": "e"}, "content": "oo"}


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "Fuse"},
        {"type": "Metaspace", "replacement": "e", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "e", "prepend_scheme": "never", "split": True},
        {"type": "Metaspace", "replacement": "e", "prepend_scheme": "first", "split": True},
        {**STRIP, "start": 0, "stop": 1},
        {"type": "Sequence", "decoders": [BYTE_LEVEL, STRIP]},
        {"type": "Sequence", "decoders": [REPLACE, {"type": "Fuse"}, STRIP]},
        {"type": "Sequence", "decoders": [STRIP, {"type": "Fuse"}, REPLACE]},
        {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [REPLACE, STRIP]}]},
    ],
)
def test_other_decoders(demo_model, tmp_path, decoder):
    tokenizer = with_decoder(demo_model, tmp_path, decoder)
    draw = random.Random(2)
    letters = [tokenizer.token_id(text) for text in ("e", "a", "he", "ee", "the")]
    letters = [token_id for token_id in letters if token_id is not None]
    for _ in range(300):
        ids = draw.choices(letters, k=draw.randrange(1, 9))
        ids.insert(draw.randrange(len(ids)), draw.randrange(4096))
        assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids), ids


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "BPEDecoder"),
        (
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
            "CTC",
        ),
        ({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}, "Regex"),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}, {**STRIP, "stop": 1}]}, "Strip"),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}, BYTE_LEVEL]}, "ByteLevel"),
    ],
)
def test_decoders_that_are_not_supported_are_named(demo_model, tmp_path, decoder, named):
    tokenizer = with_decoder(demo_model, tmp_path, decoder)
    with pytest.raises(TokenizerError, match="cannot be decoded token by token") as caught:
        IncrementalDecoder(tokenizer)
    assert named in str(caught.value)


def test_a_panic_of_the_library_is_a_tokenizer_error(demo_model, tmp_path):
    # Strip at the end of an empty token reads before its first character (tokenizers 0.23).
    empty = {"type": "Replace", "pattern": {"String": "e"}, "content": ""}
    steps = [empty, {**STRIP, "start": 0, "stop": 1}]
    tokenizer = with_decoder(demo_model, tmp_path, {"type": "Sequence", "decoders": steps})
    with pytest.raises(TokenizerError, match="tokenizer.json: cannot decode"):
        tokenizer.decode([tokenizer.token_id("e")])


def test_utf8_stream_replaces_maximal_subparts():
    # The example of Unicode 16, section 3.9, table 3-11.
    data = bytes.fromhex("61 F1 80 80 E1 80 C2 62 80 63 80 BF 64")
    expected = "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd"
    for cut in range(len(data) + 1):
        whole = Utf8Stream()
        assert whole.push(data[:cut]) + whole.push(data[cut:]) + whole.flush() == expected
    single = Utf8Stream()
    assert "".join(single.push(data[i : i + 1]) for i in range(len(data))) == expected
