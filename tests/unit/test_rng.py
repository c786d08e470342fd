"""Philox against the vectors its authors publish, and what `uniform` promises."""

import math

import pytest

from kestrel.sampling.rng import fresh_seed, philox4x32, uniform

# tests/kat_vectors of the Random123 distribution (D. E. Shaw Research), lines "philox4x32 10":
# counter, key, expected.
KNOWN_ANSWERS = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_uniform_is_the_top_53_bits_of_the_first_two_words():
    # The first known answer: seed, request and position 0. 0x6627e8d5e169c58d >> 11, by hand.
    assert uniform(0, 0, 0) == 0x6627E8D5E169C58D // 2048 / 2**53


def test_uniform_places_its_coordinates():
    # The third known answer, through seed = key, position = words 0 and 1, request = words 2 and 3.
    value = uniform(
        seed=0x299F31D0A4093822, request=0x0370734413198A2E, position=0x85A308D3243F6A88
    )
    assert value == 0xD16CFE0994FDCCEB // 2048 / 2**53


def test_uniform_stays_below_one_and_looks_uniform():
    count = 4000
    values = [uniform(7, request, position) for request in range(4) for position in range(1000)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert len(set(values)) == count  # a collision of 53-bit numbers has probability 1e-9
    # Kolmogorov-Smirnov: D * sqrt(n) exceeds 1.95 with probability 0.001 for uniform numbers; the
    # numbers are fixed, so this either holds for ever or never.
    values.sort()
    distance = max(
        max(abs(value - index / count), abs(value - (index + 1) / count))
        for index, value in enumerate(values)
    )
    assert distance * math.sqrt(count) < 1.95


def test_fresh_seeds_are_valid_and_differ():
    seeds = {fresh_seed() for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
