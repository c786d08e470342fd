"""Each transform on worked examples: arithmetic by hand unless a source is named."""

import math

import numpy as np
import pytest

from kestrel.sampling import transforms
from kestrel.sampling.history import TokenHistory
from kestrel.sampling.portable import exp_nonpositive, tree_sum
from kestrel.sampling.transforms import Candidates


def row(*logits):
    array = np.array(logits, dtype=np.float32)
    array.setflags(write=False)  # no transform may change its argument
    return array


def candidates(*probabilities):
    """Ids 0, 1, ... with these probabilities, which must descend."""
    logits = np.log(np.array(probabilities, dtype=np.float64))
    return Candidates(np.arange(len(logits), dtype=np.int32), logits)


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
    assert scaled.logits[0] == 0 and np.isfinite(scaled.logits[1])
    assert scaled.weights.tolist() == [1, 0]


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
    c = Candidates(np.arange(4, dtype=np.int32), np.log(np.array([0.5, 0.25, 0.125, 0.125])))
    c.__dict__["weights"] = np.array([1, 0.5, 0.25, 0.25])
    assert len(transforms.top_p(c, p)) == left


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
    c = Candidates(np.array([7, 3, 9], np.int32), np.zeros(3, np.float32))
    c.__dict__["weights"] = np.array([1.0, 0.5, 0.5])  # shares [0, .5), [.5, .75), [.75, 1)
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


def test_mass_does_not_depend_on_the_block():
    logits = np.zeros(3 * 4096 + 5, dtype=np.float32)
    assert transforms.mass(logits, 0.7) == len(logits)


def test_exp_is_within_one_unit_of_the_last_place():
    # math.exp of the C library is within one unit itself.
    points = -np.random.default_rng(1).exponential(50.0, 5000)
    points = np.concatenate([points[points > -708], [0.0, -1e-300, -math.log(2) / 2, -708.0]])
    for x, y in zip(points.tolist(), exp_nonpositive(points).tolist()):
        assert abs(y - math.exp(x)) <= 2 * math.ulp(y), x
    assert exp_nonpositive(np.array([-709.0, -1e9, -math.inf])).tolist() == [0, 0, 0]


def fdlibm_exp(x):
    """e_exp.c of fdlibm in Python floats, which round after each operation as IEEE 754 says."""
    k = round(x * 1.44269504088896338700e00)
    hi = x - k * 6.93147180369123816490e-01
    lo = k * 1.90821492927058770002e-10
    r = hi - lo
    t = r * r
    p4 = -1.65339022054652515390e-06 + t * 4.13813679705723846039e-08
    p2 = -2.77777777770155933842e-03 + t * (6.61375632143793436117e-05 + t * p4)
    c = r - t * (1.66666666666666019037e-01 + t * p2)
    return math.ldexp(1.0 - ((lo - (r * c) / (2.0 - c)) - hi), k)


def test_exp_has_the_same_bits_everywhere():
    points = -np.random.default_rng(2).exponential(20.0, 5000)
    assert exp_nonpositive(points).tolist() == [fdlibm_exp(x) for x in points.tolist()]


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


def test_native_selection_is_the_same():
    native = pytest.importorskip("kestrel._ops", reason="the extension is not built").top_candidates
    random = np.random.default_rng(4)
    for size in (1, 5, 300, 4096):
        for logits in (
            random.standard_normal(size).astype(np.float32),
            random.integers(-4, 4, size).astype(np.float32) * np.float32(0.0 if size == 5 else 1),
        ):
            logits[random.random(size) < 0.05] = -np.inf
            for k in {1, min(size, 50), size}:
                expected = transforms.top_candidates(logits, k)
                ids, values = native(logits, k)
                assert list(ids) == expected.ids.tolist()
                assert np.asarray(values).tobytes() == expected.logits.tobytes()
