"""The names in a folder by getdents64(2), many at a time and no object for each.

os.scandir makes an entry, its name and its path of each: over a million that takes three times as long as the kernel.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from datagen.storage.storage_base import Names

Letters = NDArray[np.uint8]

_BUFFER_BYTES = 1 << 20
_SIZE, _KIND, _NAME = 16, 18, 19
"""Offsets in a record: of its own size (2 bytes; a multiple of 8), of what it names, of the name, which ends in NUL."""
_UNKNOWN, _FOLDER, _LINK = 0, 4, 10
"""What a record names: DT_UNKNOWN, DT_DIR and DT_LNK of readdir(3)."""


def has_getdents() -> bool:
    """Say whether the C library has getdents64: glibc since 2.30."""
    return hasattr(ctypes.CDLL(None), "getdents64")


def names_in(folder: str) -> Iterator[Names]:
    """Yield all names but `.` and `..`. Raises OSError."""
    getdents = ctypes.CDLL(None, use_errno=True).getdents64
    getdents.argtypes, getdents.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        buffer = np.empty(_BUFFER_BYTES, np.uint8)
        while (count := getdents(descriptor, buffer.ctypes.data, len(buffer))) > 0:
            yield from _taken_apart(folder, buffer[:count])
        if count < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    finally:
        os.close(descriptor)


def _taken_apart(folder: str, records: Letters) -> Iterator[Names]:
    starts = _starts(records)
    sizes = records.view(np.uint16)[(starts + _SIZE) // 2]
    for size in np.unique(sizes).tolist():
        own = starts[sizes == size]
        is_all = len(own) * size == len(records)
        rows = records.reshape(-1, size) if is_all else records[own[:, np.newaxis] + np.arange(size)]
        widths = _widths(rows[:, _NAME:])
        for width in np.unique(widths).tolist():
            same = rows[widths == width]
            same = same[(same[:, _NAME : _NAME + width] != ord(".")).any(axis=1)] if width < 3 else same
            letters = same[:, _NAME : _NAME + width]
            yield Names(letters, partial(_is_folder, folder, letters, same[:, _KIND]))


def _starts(records: Letters) -> NDArray[np.int64]:
    """Return where each record begins: names of one length, as a dataset's are, have records of one size."""
    halves = records.view(np.uint16)
    size = int(halves[_SIZE // 2])
    if len(records) % size == 0 and (halves.reshape(-1, size // 2)[:, _SIZE // 2] == size).all():
        return np.arange(0, len(records), size)
    sizes, starts, at = records.data.cast("H"), [], 0
    while at < len(records):
        starts.append(at)
        at += sizes[(at + _SIZE) // 2]
    return np.array(starts)


def _widths(names: Letters) -> NDArray[np.int64]:
    """Return how long each name is: most often as long as the first, which is told sooner."""
    first = int((names[0] == 0).argmax())
    if names[:, :first].all() and not names[:, first].any():
        return np.full(len(names), first)
    widths: NDArray[np.int64] = (names == 0).argmax(axis=1)
    return widths


def _is_folder(folder: str, letters: Letters, kinds: Letters, number: int) -> bool:
    """Say what os.DirEntry.is_dir says: a link is what it leads to."""
    if kinds[number] not in (_UNKNOWN, _LINK):
        return bool(kinds[number] == _FOLDER)
    return os.path.isdir(os.path.join(os.fsencode(folder), letters[number].tobytes()))
