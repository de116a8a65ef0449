"""A seeded shuffle of the numbers 0 to n-1 without a table: the new place of a number is computed on request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6  # 4 are enough with strong round functions (Luby and Rackoff, 1988); these are weak, but fast
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: spreads neighbours
_MIX = np.uint64(0xBF58476D1CE4E5B9)  # a multiplier of splitmix64 (Steele, Lea, Flood 2014)


def permute(positions: NDArray[np.int64], n: int, seed: int) -> NDArray[np.int64]:
    """Return where a shuffle of range(n) puts each position; for every seed it is a bijection of range(n).

    A Feistel network over the smallest even number of bits that holds n - 1; results of n or more are encrypted again
    until below n, less than 4 times on average (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite
    domains", 2002).
    """
    if n < 2:
        return positions.copy()
    half = np.uint64((int(n - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, n]).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    values = _encrypt(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        values[outside] = _encrypt(values[outside], half, keys)
        outside = outside[values[outside] >= n]
    return values.astype(np.int64)


def _encrypt(values: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a bijection of the numbers of 2 x `half` bits, one Feistel round per key."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        mixed = (right * _ODD) ^ key
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
        left, right = right, left ^ ((mixed >> np.uint64(29)) & mask)
    return (left << half) | right
