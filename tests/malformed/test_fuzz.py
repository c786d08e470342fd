"""Seeded mutations of headers, configs and indexes: only Kestrel's own errors come out.

Headers are also given to the safetensors package: where it refuses, Kestrel refuses; where Kestrel
alone refuses, it must be for one of the reasons that corpus.STRICTER lists.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors

from checkpoints import INDEX_NAME, tiny_llama_config, tiny_llama_tensors, write_checkpoint
from kestrel.checkpoint import Checkpoint, SafetensorsFile
from kestrel.errors import CheckpointError, ConfigError, HeaderError
from malformed.corpus import VALID

SEED = 20240607

# Pieces that parsers trip over, to be spliced in anywhere.
TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u", b"\\ud800", b"\\u0061", b"\0", b"\xff",
    b"\xed\xa0\x80", b"-", b"-0", b"0", b"1e9", b"1e999", b"NaN", b"null", b"true", b"[" * 3000,
    b'{"a":' * 3000, b"9" * 20, b"18446744073709551615", b"18446744073709551616", b"9" * 6000,
    b'"a":1', b'"dtype":"F4"', b'"shape":[0]', b'"data_offsets":[0,0]', b'"__metadata__":{}',
    b'"../x.safetensors"', b'"/dev/stdin"', b'"."', b'""', b"\xef\xbb\xbf", b" ", b"F64", b"[0,4]",
]  # fmt: skip

# What the message says when Kestrel alone refuses: the reasons of corpus.STRICTER.
STRICTER_WORDS = ("stands twice", "unknown field", "expected an object", "dtype: expected one of")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four random edits: bits, bytes, cuts, copies, tokens, digits."""
    text = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.randint(1, 12))
        match rng.randrange(7):
            case 0 if at < len(text):
                text[at] ^= 1 << rng.randrange(8)
            case 1:
                text[at:at] = rng.choice(TOKENS)
            case 2:
                text[at:to] = b""
            case 3:
                other = rng.randrange(len(text) + 1)
                text[at:at] = text[other : other + rng.randint(1, 60)]
            case 4:
                text[at:to] = rng.choice(TOKENS)
            case 5 if at < len(text) and 48 <= text[at] <= 57:
                text[at] = rng.randrange(48, 58)
            case _:
                if rng.random() < 0.1:
                    del text[at:]
    return bytes(text)


def overwrite(path: Path, data: bytes) -> None:
    """Like write_bytes; but some file systems flush to disk when a file is emptied first."""
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()


@contextlib.contextmanager
def watchdog(seconds: int) -> Iterator[None]:
    """Turn a hang into a failure. Not a measure of speed: the limit is far from the usual."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        pytest.fail(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_header_mutations_get_the_verdict_of_the_package(tmp_path):
    rng = random.Random(SEED)
    path = tmp_path / "model.safetensors"
    bases = [case.data for case in VALID]
    verdicts: Counter[str] = Counter()
    with watchdog(120):
        for turn in range(4000):
            base = rng.choice(bases)
            length = int.from_bytes(base[:8], "little")
            raw, data = mutate(base[8 : 8 + length], rng), base[8 + length :]
            # Mostly an honest length, so that the JSON is reached.
            stated = len(raw) if rng.random() < 0.9 else rng.choice([length, rng.getrandbits(64)])
            whole = stated.to_bytes(8, "little") + raw + data
            overwrite(path, whole)
            try:
                SafetensorsFile(path)
                ours = None
            except HeaderError as error:
                ours = str(error)
            theirs = _package_accepts(whole)
            where = f"turn {turn}: {whole[:300]!r}"
            if ours is None:
                assert theirs, where
                verdicts["both accept"] += 1
            elif theirs:
                assert any(words in ours for words in STRICTER_WORDS), f"{ours}: {where}"
                verdicts["stricter"] += 1
            else:
                verdicts["both refuse"] += 1
    # The mutations reach both sides of the border.
    assert verdicts["both accept"] > 200
    assert verdicts["both refuse"] > 1000


def _package_accepts(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


@pytest.fixture
def folder(tmp_path) -> Path:
    config = tiny_llama_config(num_hidden_layers=1)
    tensors = tiny_llama_tensors(config, seed=5)
    return write_checkpoint(
        tmp_path / "model", config, tensors, shards=2, generation_config={"eos_token_id": [1, 2]}
    )


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("config.json", ConfigError),
        ("generation_config.json", ConfigError),
        (INDEX_NAME, CheckpointError),
    ],
)
def test_json_mutations_raise_nothing_but_our_errors(folder, name, errors):
    rng = random.Random(SEED)
    path = folder / name
    base = path.read_bytes()
    refused = 0
    with watchdog(120):
        for turn in range(1000):
            data = mutate(base, rng)
            overwrite(path, data)
            try:
                Checkpoint(folder)
            except errors as error:
                refused += 1
                assert name in str(error), f"turn {turn}: {error}"
            except Exception as error:
                raise AssertionError(f"turn {turn}: {type(error)}: {data[:300]!r}") from error
    # JSON that is still well-formed is the config parser's to judge, so some of them pass here.
    assert 300 < refused < 1000


def test_every_cut_of_a_file_is_refused(folder):
    path = folder / "model-00002-of-00002.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = [*range(0, header + 8, 7), *range(header, len(whole), 997), len(whole) - 1]
    for cut in cuts:
        overwrite(path, whole[:cut])
        with pytest.raises(HeaderError) as caught:
            Checkpoint(folder)
        assert caught.value.file == str(path)
        if cut >= header:
            assert f"ends {len(whole) - cut:,} byte" in str(caught.value)
