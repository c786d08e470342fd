"""kestrel bench: figures against arithmetic by hand, the parts of a time, bars."""

import json
import re

import numpy
import pytest
from system.command_line import on_a_terminal, run, start

from kestrel.cli import bench_table
from kestrel.cli.bench_profile import Split, split

#: The demo model, from its card: 5,475,584 parameters of 2 bytes, each read once (the tied
#: embedding is the head), and the inverse frequencies of head_dim 32: 16 of 4 bytes.
WEIGHTS = 2 * 5_475_584 + 64
#: Multiply-adds of a token in its matrices: every parameter but the embedding's (the head counts by
#: rows) and the norms', which are one vector of 256 before each half of each layer, and one last.
LAYERS, HIDDEN, VOCAB, QUERIES, KEYS = 6, 256, 4096, 256, 128
HEAD = VOCAB * HIDDEN
MATRICES = 5_475_584 - HEAD - (2 * LAYERS + 1) * HIDDEN
#: Those of them behind the last attention, o_proj and the MLP's three: they count by rows, too.
BEHIND = HIDDEN * (QUERIES + 3 * 704)

SHORT = ("--runs", 2, "--warmup", 0, "--prefill-tokens", 20)


def seen(first, tokens):
    """Positions that tokens see, from position ``first`` on: the one at p sees p + 1."""
    return sum(range(first + 1, first + tokens + 1))


def operations(first, tokens, logit_rows):
    """Two a multiply-add; attention has one for each element of a key, and of a value."""
    attention = LAYERS * 2 * QUERIES * seen(first, tokens)
    rows = (BEHIND + HEAD) * logit_rows
    return 2 * ((MATRICES - BEHIND) * tokens + rows + attention)


@pytest.fixture(scope="module")
def report(demo_model):
    """What --json prints for 1 and 2 threads."""
    arguments = ("bench", demo_model, *SHORT, "--json", "--threads", "1,2")
    out, err = run(*arguments)
    assert err == "", "no progress and no notes beside JSON"
    return json.loads(out)


def test_the_protocol_and_the_same_checksum_with_each_thread_count(report, outcome, demo_model):
    assert report["protocol"] == {
        "prompt_tokens": 16, "new_tokens": 32, "prefill_tokens": 20, "warmup": 0, "runs": 2,
    }  # fmt: skip
    [other] = report["other_threads"]
    assert (report["machine"]["threads"], other["machine"]["threads"]) == (1, 2)
    status, out, _ = outcome("bench", demo_model, *SHORT, "--json")
    again = json.loads(out)
    assert status == 0 and again["other_threads"] == []
    assert report["logits_checksum"] == other["logits_checksum"] == again["logits_checksum"]


def test_what_was_moved_and_computed_by_hand(report):
    cache = LAYERS * 2 * KEYS * 4  # bytes of a position, float32
    expected = {
        # (tokens, bytes, operations); the prompt's own keys and values are read once.
        "prefill": (20, WEIGHTS + 20 * cache, operations(0, 20, 1)),
        "first_token": (16, WEIGHTS + 16 * cache, operations(0, 16, 1)),
        # 31 steps after the first token: the one at position p reads p + 1 positions.
        "decode": (31, 31 * WEIGHTS + seen(16, 31) * cache, operations(16, 31, 31)),
    }
    for each in (report, *report["other_threads"]):
        assert each["weight_bytes_per_step"] == WEIGHTS
        assert set(each["phases"]) == set(expected)
        for name, phase in each["phases"].items():
            assert (phase["tokens"], phase["bytes"], phase["flops"]) == expected[name], name


def test_rates_limits_and_shares(report):
    for each in (report, *report["other_threads"]):
        assert (each["processors_busy_with_others"] or 0.0) >= 0.0
        limits = each["limits"]
        assert limits["read_bytes"] == WEIGHTS + 47 * LAYERS * 2 * KEYS * 4  # of the last step
        for phase in each["phases"].values():
            milliseconds, rates = phase["milliseconds"], phase["tokens_per_second"]
            for spread in (milliseconds, rates):
                assert 0 < spread["min"] <= spread["median"] <= spread["max"]
            assert rates["max"] == pytest.approx(phase["tokens"] / milliseconds["min"] * 1e3)
            seconds = milliseconds["median"] / 1e3
            floors = {
                "bytes": phase["bytes"] / limits["read_gigabytes_per_second"] / 1e9,
                "arithmetic": phase["flops"] / limits["gigaflops_per_second"] / 1e9,
            }
            assert phase["limited_by"] == max(floors, key=floors.get)
            assert phase["share"] == pytest.approx(phase["rate"] / phase["limit"])
            assert phase["share"] == pytest.approx(max(floors.values()) / seconds)
            assert phase["unit"] == {"bytes": "GB/s", "arithmetic": "GFLOP/s"}[phase["limited_by"]]
            assert phase["gigabytes_per_second"] == pytest.approx(phase["bytes"] / seconds / 1e9)
            parts = phase["time"]
            assert set(parts) == {"kernels", "barriers", "host"}
            assert sum(parts.values()) == pytest.approx(1.0) and min(parts.values()) >= 0
            largest = max(parts, key=parts.get)
            named = phase["limited_by"] if largest == "kernels" else largest
            assert phase["bound_by"] == named
        first, phases = each["first_token_ms"], each["phases"]
        assert first == phases["first_token"]["milliseconds"]
        assert each["decode_tokens_per_second"] == phases["decode"]["tokens_per_second"]
        assert each["prefill_tokens_per_second"] == phases["first_token"]["tokens_per_second"]
        assert each["long_prefill_tokens_per_second"] == phases["prefill"]["tokens_per_second"]


def test_other_backends_have_no_limits_of_this_machine(outcome, demo_model):
    status, out, _ = outcome("bench", demo_model, *SHORT, "--backend", "null", "--json")
    report = json.loads(out)
    assert status == 0 and report["limits"] is None
    assert all("share" not in phase for phase in report["phases"].values())
    status, out, _ = outcome("bench", demo_model, *SHORT, "--backend", "null")
    assert status == 0 and "GB/s" in out and "kernels" not in out


def test_as_a_table(outcome, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = outcome("bench", *SHORT, "--threads", "1,2")
    assert status == 0
    for part in ("prefill 20", "first token 16", "decode 32", "bound by", "kernels", "barriers",
                 "1 thread:", "2 threads:", "checksum", "2 measured"):  # fmt: skip
        assert part in out
    assert max(map(len, out.splitlines()[:-1])) <= 80  # the last line tells the processor
    assert "1 thread;" in err and "2 threads;" in err and "run/s" not in err
    shares = re.findall(r"(?m)^(?:prefill|first token|decode) .* (\d+\.\d)%  \w+$", out)
    assert len(shares) == 6


def test_a_terminal_shows_the_progress(demo_model):
    shown = on_a_terminal("stderr", "bench", demo_model, *SHORT, "--threads", 1)
    for part in ("bench, 1 thread:", "checksum", "limits", "decode", "prefill", "profile", "/12 ["):
        assert part in shown
    assert on_a_terminal("stderr", "bench", demo_model, *SHORT, "--json") == ""


def test_says_what_context_it_needs(outcome):
    status, _, err = outcome("bench", "--max-context", 40)
    assert status == 2 and "a context of 129 tokens, found 40" in err


# -- parts of a time ---------------------------------------------------------------------------


def test_the_parts_of_a_step_by_hand():
    # Two commands on two threads, nanoseconds: 10 and 40 long, a gap, then 30 and 20.
    record = numpy.array([[[100, 110], [100, 140]], [[150, 180], [155, 175]]], dtype=numpy.int64)
    # From 100 to 180; the threads compute 40 and 60 of these 80.
    found = split([record], 100e-9)
    assert found.kernels == pytest.approx(50e-9)
    assert found.barriers == pytest.approx(30e-9)
    assert found.host == pytest.approx(20e-9)
    twice = split([record, record], 200e-9)
    assert vars(twice) == pytest.approx(vars(found + found))
    assert twice.shares() == pytest.approx({"kernels": 0.5, "barriers": 0.3, "host": 0.2})
    assert split([], 1.0) == Split(0.0, 0.0, 1.0)


# -- bars --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "width", "expected"),
    [
        ([0.5, 0.3, 0.2], 10, "#####===.."),
        ([0.5, 0.3, 0.2], 20, "##########======...."),
        ([0.96, 0.0, 0.04], 10, "##########"),
        ([0.25, 0.75, 0.0], 10, "##========"),
        ([1.0], 3, "##########"),  # never shorter than 10
        ([0.5], 10, "#####"),
    ],
)
def test_a_bar_ends_each_part_at_the_nearest_column(parts, width, expected):
    assert bench_table._stacked(parts, width, "#=.") == expected


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "█"), ("ascii", "#"), ("latin-1", "#")])
def test_bars_are_of_what_the_encoding_has(encoding, mark):
    with start("bench", *SHORT, environment={"PYTHONIOENCODING": encoding}) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    text = out.decode(encoding)
    assert f"{mark} kernels" in text and mark * 2 in text and "\\u" not in text
