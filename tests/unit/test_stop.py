"""Stop strings across pieces never leak a part (S26)."""

import random

import pytest

from kestrel.text.stop import StopMatcher


def run(stops, pieces):
    """What is given out in all, and the stop string that was found."""
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        emitted, stopped = matcher.push(piece)
        text += emitted
        assert stopped is (matcher.matched is not None)
        if stopped:
            assert matcher.push("more") == ("", True)
            break
    return text + matcher.flush(), matcher.matched


def test_as_reported():
    # S26: answer "alpha beta gamma", stop "beta gamma", whole and in pieces.
    for pieces in (["alpha beta gamma"], ["alpha", " beta", " gamma"], list("alpha beta gamma")):
        assert run(["beta gamma"], pieces) == ("alpha ", "beta gamma")


def test_a_beginning_that_comes_to_nothing_is_given_out_late():
    matcher = StopMatcher(["beta gamma"])
    assert matcher.push("alpha be") == ("alpha ", False)
    assert matcher.push("ta ") == ("", False)
    assert matcher.push("delta") == ("beta delta", False)
    assert matcher.flush() == ""


def test_flush_gives_what_was_held():
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == ("the ", False)
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["b", "a"], "xaby", ("x", "a")),  # complete first
        (["abcd", "bc"], "xabcdy", ("xa", "bc")),  # "bc" is complete before "abcd"
        (["cd", "abcd"], "xabcdy", ("x", "abcd")),  # both at the same character: the longest
        (["aab"], "aaab", ("a", "aab")),  # overlaps its own beginning
        (["abab"], "ababab", ("", "abab")),
        (["\n\n"], "one\ntwo\n\nthree", ("one\ntwo", "\n\n")),
        (["🙂"], "so🙂", ("so", "🙂")),
        ([], "all of it", ("all of it", None)),
        (["never"], "all of it nev", ("all of it nev", None)),
    ],
)
def test_which_one_wins_however_the_text_is_cut(stops, text, expected):
    for size in range(1, len(text) + 1):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert run(stops, pieces) == expected, size


def oracle(stops, text):
    """The definition, character by character: the first end of a stop string, the longest there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_random_texts_and_cuts():
    draw = random.Random(9)
    for _ in range(3000):
        stops = ["".join(draw.choices("ab", k=draw.randrange(1, 5))) for _ in range(3)]
        text = "".join(draw.choices("abc", weights=[3, 3, 2], k=draw.randrange(25)))
        pieces, rest = [], text
        while rest:
            size = draw.randrange(0, 4)
            pieces.append(rest[:size])
            rest = rest[size:]
        assert run(stops, pieces) == oracle(stops, text), (stops, pieces)
