"""Each transform on worked examples: arithmetic by hand unless a source is named."""

import decimal
import math

import numpy as np
import pytest

from kestrel.sampling import portable, transforms
from kestrel.sampling.history import TokenHistory
from kestrel.sampling.portable import exp2_nonpositive, tree_sum
from kestrel.sampling.transforms import Candidates

LOG2_E = 1.4426950408889634


def row(*logits):
    array = np.array(logits, dtype=np.float32)
    array.setflags(write=False)  # no transform may change its argument
    return array


def candidates(*probabilities):
    """Ids 0, 1, ... with these probabilities, which must descend."""
    logits = np.log(np.array(probabilities)).astype(np.float32)
    return Candidates(np.arange(len(logits), dtype=np.int32), logits)


def weighted(ids, *weights):
    """Candidates with these weights, exactly."""
    c = Candidates(np.array(ids, np.int32), np.zeros(len(ids), np.float32))
    c._weights, c._cumulative = np.array(weights), np.cumsum(weights)
    return c


def history(prompt, answer):
    seen = TokenHistory(prompt)
    for token in answer:
        seen.observe(token)
    return seen


def test_repetition_counts_each_token_once():
    # User report S31: logits [2, -2, 0], token 0 three times, token 1 once, penalty 2.
    seen = history([0, 0], [0, 1])
    penalized = transforms.penalize(row(2, -2, 0), seen, 2.0, 0.0, 0.0)
    assert penalized.tolist() == [1, -4, 0]
    assert penalized.dtype == np.float32


def test_repetition_counts_the_prompt_too():
    seen = history([0, 1], [])
    assert transforms.penalize(row(2, -2, 1), seen, 2.0, 0.0, 0.0).tolist() == [1, -4, 1]


def test_frequency_counts_occurrences_in_the_answer():
    # User report S31: [2 - 3 * 0.5, -2 - 0.5, 0].
    seen = history([], [0, 0, 1, 0])
    assert transforms.penalize(row(2, -2, 0), seen, 1.0, 0.0, 0.5).tolist() == [0.5, -2.5, 0]


def test_presence_and_frequency_do_not_count_the_prompt():
    seen = history([0, 0, 1, 2], [1])
    assert transforms.penalize(row(2, -2, 0), seen, 1.0, 0.25, 0.5).tolist() == [2, -2.75, 0]


def test_all_three_penalties_in_order():
    # Token 0: 4 / 2 - 2 * 0.25 - 0.5 = 1; token 1 (prompt only): 3 / 2.
    seen = history([0, 1], [0, 0])
    assert transforms.penalize(row(4, 3, 7), seen, 2.0, 0.5, 0.25).tolist() == [1, 1.5, 7]


def test_bias_adds_and_bans():
    biased = transforms.add_bias(row(1, 2, 3), {2: -math.inf, 0: 1.5})
    assert biased.tolist() == [2.5, 2, -math.inf]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 7, 100])
def test_top_candidates_orders_equals_by_id(k):
    # By hand: 3 at ids 1 and 4, then 2 at id 3, 1 at id 0, zeros of either sign at 2 and 5.
    top = transforms.top_candidates(row(1, 3, -0.0, 2, 3, 0.0), k)
    assert top.ids.tolist() == [1, 4, 3, 0, 2, 5][:k]
    assert top.logits.tolist() == [3, 3, 2, 1, 0, 0][:k]
    assert top.ids.dtype == np.int32 and top.logits.dtype == np.float32


def test_top_candidates_equal_a_full_sort():
    random = np.random.default_rng(0)
    for size in (1, 2, 17, 1000):
        logits = random.integers(-5, 5, size).astype(np.float32)  # many ties
        logits[random.random(size) < 0.1] = -np.inf
        order = sorted(range(size), key=lambda i: (-logits[i], i))
        for k in {1, 2, size // 2 + 1, size, size + 1}:
            assert transforms.top_candidates(logits, k).ids.tolist() == order[:k]


def test_scale_divides_without_overflow():
    c = Candidates(np.array([1, 0], np.int32), row(3e38, -3e38))
    scaled = transforms.scale(c, 1e-5)
    assert scaled.weights.tolist() == [1, 0] and scaled.cumulative.tolist() == [1, 1]
    assert scaled.ids is c.ids and scaled.logits is c.logits


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_weights_are_exponentials(temperature):
    # In units of 2**-53: ours 2.5, three roundings of an exponent of at most 60 / 0.3, math.exp 1.
    logits = np.sort(np.random.default_rng(6).uniform(-30, 30, 300).astype(np.float32))[::-1]
    c = transforms.scale(Candidates(np.arange(300, dtype=np.int32), logits.copy()), temperature)
    for weight, logit in zip(c.weights.tolist(), logits.tolist()):
        exact = math.exp((logit - float(logits[0])) / temperature)
        assert abs(weight - exact) <= (2.5 + 3 * 60 / temperature + 1) * 2**-53 * exact
    assert c.cumulative.tolist() == np.add.accumulate(c.weights).tolist()
    kept = c.head(7)
    assert kept.weights.tolist() == c.weights[:7].tolist() and kept.temperature == temperature


@pytest.mark.parametrize(
    ("k", "left"), [(0, [0, 1, 2]), (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2])]
)
def test_top_k(k, left):
    assert transforms.top_k(candidates(0.5, 0.3, 0.2), k).ids.tolist() == left


@pytest.mark.parametrize(
    ("p", "left"),
    [(0.0, 1), (0.3, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.99, 4), (1.0, 4)],
)
def test_top_p_keeps_the_crossing_token(p, left):
    # Probabilities 1/2, 1/4, 1/8, 1/8: weights relative to the first are exact in binary.
    assert len(transforms.top_p(weighted(range(4), 1, 0.5, 0.25, 0.25), p)) == left


def test_top_p_of_a_head_needs_the_whole_mass():
    c = candidates(0.4, 0.3)  # of a distribution with 0.3 elsewhere: whole mass 1 / 0.4
    assert len(transforms.top_p(c, 0.5, 1 / 0.4)) == 2
    assert len(transforms.top_p(c, 0.3, 1 / 0.4)) == 1
    assert len(transforms.top_p(c, 0.9, 1 / 0.4)) == 2  # all: not reached


def test_min_p_is_relative_to_the_first():
    # User report S30: min_p works by itself. 0.5 * 0.6 = 0.3.
    assert transforms.min_p(candidates(0.6, 0.31, 0.09), 0.5).ids.tolist() == [0, 1]
    assert transforms.min_p(candidates(0.6, 0.29, 0.11), 0.5).ids.tolist() == [0]
    equal = Candidates(np.arange(3, dtype=np.int32), row(2, 2, 1))
    assert transforms.min_p(equal, 1.0).ids.tolist() == [0, 1]


def test_draw_follows_the_shares():
    c = weighted([7, 3, 9], 1.0, 0.5, 0.5)  # shares [0, .5), [.5, .75), [.75, 1)
    drawn = [transforms.draw(c, u) for u in (0.0, 0.4999, 0.5, 0.7499, 0.75, 1 - 2**-53)]
    assert drawn == [7, 7, 3, 3, 9, 9]
    assert transforms.draw(c, 0.5, whole=4.0) is None  # 0.5 * 4 is where the head ends
    assert transforms.draw(c, 0.4, whole=4.0) == 9


def test_draw_never_gives_a_weightless_candidate():
    c = Candidates(np.arange(3, dtype=np.int32), row(1, -math.inf, -math.inf))
    assert transforms.draw(c, 1 - 2**-53) == 0


def test_mass_of_a_row():
    # exp(0) + exp(-1 / 0.5) + exp(-2 / 0.5); exp is math.exp here, within one unit of ours.
    expected = 1 + math.exp(-2) + math.exp(-4)
    assert transforms.mass(row(0, 1, 2), 0.5) == pytest.approx(expected, rel=4 * 2**-53)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 3 * 4096 + 5])
def test_mass_does_not_depend_on_the_part(size):
    assert transforms.mass(np.zeros(size, dtype=np.float32), 0.7) == size


def test_mass_of_many_against_exact_sums():
    # Relative, in units of 2**-53: as in test_weights_are_exponentials with exponents of at most
    # 28 / 0.8, and additions: 9 in a tree of 512 numbers, then 8 parts.
    logits = np.random.default_rng(7).uniform(-14, 14, 4096).astype(np.float32)
    exact = math.fsum(math.exp((x - float(logits.max())) / 0.8) for x in logits.tolist())
    assert abs(transforms.mass(logits, 0.8) - exact) <= (3.5 + 3 * 35 + 9 + 8) * 2**-53 * exact
    lse = transforms.log_sum_exp(logits)
    assert lse == pytest.approx(math.log(math.fsum(map(math.exp, logits.tolist()))), abs=1e-13)


def test_exp2_is_within_its_bound():
    # Against 40 digits: 1.25 units are promised.
    points = -np.random.default_rng(1).exponential(50.0, 2000)
    points = np.concatenate([points, [0.0, -1e-300, -0.5, -1.5, -1021.0, -1021.4999]])
    with decimal.localcontext() as context:
        context.prec = 40
        for z, y in zip(points.tolist(), exp2_nonpositive(points).tolist()):
            error = decimal.Decimal(y) - decimal.Decimal(2) ** decimal.Decimal(z)
            assert abs(error) <= decimal.Decimal(1.25 * math.ulp(y)), z
    assert exp2_nonpositive(np.array([-1021.5, -1e9, -math.inf])).tolist() == [0, 0, 0]


def plain_exp2(z):
    """The polynomial of native/cpu/kernels/mass.c in Python floats, each operation rounded once."""
    r = z - round(z)
    y = 0.0
    for coefficient in """
        0x1.e9d3fe3952179p-32 0x1.e6063f7217bc6p-28 0x1.b524fae627834p-24 0x1.62bfd47773353p-20
        0x1.ffcbfc670dcd4p-17 0x1.430913096fd9fp-13 0x1.5d87fe78a5276p-10 0x1.3b2ab6fba1ddap-7
        0x1.c6b08d704a0c2p-5 0x1.ebfbdff82c598p-3 0x1.62e42fefa39efp-1 0x1p0
    """.split():
        y = y * r + float.fromhex(coefficient)
    return math.ldexp(y, round(z))


def test_exp2_has_the_same_bits_everywhere():
    points = -np.random.default_rng(2).exponential(30.0, 5000)
    assert exp2_nonpositive(points).tolist() == [plain_exp2(z) for z in points.tolist()]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 4097])
def test_tree_sum(count):
    values = np.random.default_rng(count).random(count)
    exact = math.fsum(values)
    assert abs(tree_sum(values) - exact) <= 13 * 2**-53 * exact  # log2(4097) rounds up to 13


def test_history_follows_a_plain_count():
    random = np.random.default_rng(3)
    prompt = random.integers(0, 50, 30).tolist()
    answer = random.integers(0, 300, 500).tolist()
    seen = history(prompt, answer)
    counts = dict(zip(seen.ids.tolist(), seen.answer_counts.tolist()))
    assert len(counts) == len(seen.ids)
    assert counts == {token: answer.count(token) for token in set(prompt + answer)}


def rows_to_select_from(size, random):
    """Rows of every kind that may be hard: ties, zeros of both signs, runs, -inf."""
    normal = random.standard_normal(size)
    yield normal
    yield random.integers(-4, 4, size) * 0.25
    yield np.where(random.random(size) < 0.5, 0.0, -0.0)
    yield np.where(random.random(size) < 0.4, -np.inf, normal)
    yield np.full(size, -1.5)
    yield np.arange(size) / 8
    yield -np.arange(size) / 8
    yield np.repeat(normal, 70)[:size]  # the largest of them in few blocks
    yield np.where(np.arange(size) % 64, normal - 9, normal)  # one in each block


@pytest.mark.parametrize("size", [1, 15, 16, 300, 4097, 20000])
def test_native_rows_are_the_same_bits(size):
    native = pytest.importorskip("kestrel._ops", reason="the extension is not built")
    random = np.random.default_rng(size)
    for logits in rows_to_select_from(size, random):
        logits = logits.astype(np.float32)
        for k in {1, min(size, 50), min(size, 256), size // 12 + 1, size // 2 + 1, size}:
            found = []
            for module in (portable, native):
                ids, values = np.full(k, -1, np.int32), np.empty(k, np.float32)
                assert module.top_candidates(logits, ids, values) == k
                weights, sums = np.empty(k), np.empty(k)
                module.weigh(values, LOG2_E / 0.8, weights, sums)
                found.append([part.tobytes() for part in (ids, values, weights, sums)])
            assert found[0] == found[1], k
        for scale in (1e-3, LOG2_E, 1e5):
            highest = float(logits.max())
            if math.isfinite(highest):
                expected = portable.mass(logits, highest, scale)
                assert native.mass(logits, highest, scale) == expected


def test_native_rows_refuse_what_does_not_fit():
    native = pytest.importorskip("kestrel._ops", reason="the extension is not built")
    logits, ids, values = np.zeros(3, np.float32), np.zeros(2, np.int32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="found 3, 2 and 3"):
        native.top_candidates(logits, ids, values)
    with pytest.raises(ValueError, match="found 0, 2 and 2"):
        native.top_candidates(logits[:0], ids, values[:2])
    with pytest.raises(ValueError, match="found 3, 2 and 3"):
        native.weigh(logits, 1.0, np.zeros(2), np.zeros(3))
    assert native.mass(logits[:0], 0.0, 1.0) == 0.0
