"""Crops: as many bytes as a trainer is to get of each sample, from a place that the sample's number picks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PLACE_BYTES = 4096
"""Samples begin at a multiple of this in memory, and so do crops in their sample: O_DIRECT and DMA want it."""

_MASK = (1 << 64) - 1


def crop_word(seed: int, sample: int) -> int:
    """Return the number that (seed, sample) draws, 0 to 2^63 - 1: splitmix64 of the pair, without its last bit.

    In whole numbers: a numpy call for one number costs ten times as much.
    """
    word = (seed * 0xD1342543DE82EF95 + sample * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return (word ^ (word >> 31)) >> 1


def crop_start(seed: int, sample: int, sample_bytes: int, crop_bytes: int) -> int:
    """Return where the crop of a sample begins: a multiple of 4096 drawn by (seed, sample), or 0 if it is shorter."""
    spare = sample_bytes - crop_bytes
    if spare < PLACE_BYTES:
        return 0
    return PLACE_BYTES * (crop_word(seed, sample) % (spare // PLACE_BYTES + 1))


def put_crop(place: NDArray[np.uint8], crop: NDArray[np.uint8]) -> None:
    """Copy a crop into its place; what it leaves is made zero."""
    np.copyto(place[: crop.size], crop)
    place[crop.size :] = 0
