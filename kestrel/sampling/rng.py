"""Random numbers without state: one uniform number for each (seed, request, position).

Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as
easy as 1, 2, 3", SC 2011, in Python integers. Because a number depends on nothing but its three
coordinates, an answer does not depend on batching, preemption, threads or platform.
"""

from __future__ import annotations

import os

__all__ = ["fresh_seed", "philox4x32", "uniform"]

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9  # golden ratio
_WEYL_1 = 0xBB67AE85  # square root of 3, minus 1
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """The Philox4x32-10 block function: four 32-bit words from a counter and a key of such."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, request: int, position: int) -> float:
    """A number in [0, 1): a multiple of 2**-53, each equally likely.

    Args:
        seed: of the request, the key; 0 to 2**64 - 1.
        request: which answer of the call, counted from 0, so that the same call gives the same
            answers again; 0 to 2**64 - 1. Never a counter that outlives the call.
        position: of the token to be drawn in its sequence, from 0; 0 to 2**64 - 1.
    """
    counter = (position & _MASK, position >> 32, request & _MASK, request >> 32)
    high, low, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return ((high << 32 | low) >> 11) * 2.0**-53


def fresh_seed() -> int:
    """A seed for a request that names none, 0 to 2**63 - 1; the caller reports it."""
    return int.from_bytes(os.urandom(8), "little") >> 1  # secrets takes OpenSSL along
