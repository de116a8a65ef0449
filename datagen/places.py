"""Where samples are in a buffer: one array for a batch, so that no sample of it costs anything by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
"""(offset, bytes) of each sample, or of each span read of a row group; shape (places, 2), cheaper than objects."""
NO_PLACES: Places = np.empty((0, 2), np.int64)


def as_places(flat: Sequence[int]) -> Places:
    """Return the places given as a flat sequence: offset, bytes, offset, bytes, ..."""
    return np.array(flat, np.int64).reshape(-1, 2)


def even_places(first: int, step: int, size_bytes: int, count: int) -> Places:
    """Return `count` places of `size_bytes` bytes, one every `step` bytes from offset `first` on."""
    places = np.empty((count, 2), np.int64)
    places[:, 0] = np.arange(first, first + count * step, step)
    places[:, 1] = size_bytes
    return places


def shifted(places: Places, by: int) -> Places:
    """Return the places with `by` bytes added to each offset."""
    return places + np.array((by, 0), np.int64) if by else places
