"""HDF5 through memory of ours: Python's file protocol for HDF5's own reader and writer, and what a file holds."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError, SpaceError
from datagen.extras import library
from datagen.formats.format_base import Source

_LIBC = ctypes.CDLL(None)
_PUNCH_HOLE = 0x03
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE (Linux, falloc.h)."""
BLOCK_BYTES = 16 << 10
"""HDF5's records of a file's structure are read in pieces of this, which hold several."""


def hdf5() -> Any:
    """Return h5py. Raises UserError where it is not installed."""
    return library("h5py", "hdf5")


@dataclass(frozen=True)
class Outline:
    """A file's structure: its size, and all bytes that are not a dataset's own."""

    size_bytes: int
    pieces: dict[int, bytes]
    """Offset -> bytes there."""


@contextlib.contextmanager
def skeleton() -> Iterator[Skeleton]:
    """Make a skeleton, which is gone afterwards. Raises SpaceError."""
    with contextlib.ExitStack() as stack:
        with writing():
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="dlemu-hdf5-"))
        yield Skeleton(file.fileno(), file.name.encode())


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Tell what the system has against a skeleton as that: the dataset's folder is not at fault. Raises SpaceError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # which of them is h5py's choice
        folder = tempfile.tempdir or "any temporary folder"
        raise SpaceError(
            f"HDF5's temporary file can't be written in {folder} ({error}); wanted: room for some chunks of a file "
            "there. Set TMPDIR to a folder that has it"
        ) from error


@dataclass(frozen=True)
class Skeleton:
    """A temporary file that HDF5 writes by its own driver, sparse where datasets lie.

    Through any other driver it would give them other places: only the drivers for real files gather the pieces of a
    structure into blocks.
    """

    descriptor: int
    path: bytes

    def empty(self, offset: int, size_bytes: int) -> None:
        """Give back the memory of bytes that nobody will read again."""
        # Where the kernel can't, the file stays as large as it is.
        _LIBC.fallocate(self.descriptor, _PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size_bytes))

    def outline(self, extents: list[tuple[int, int]]) -> Outline:
        """Return what the file holds around the (offset, bytes) given."""
        size_bytes = os.fstat(self.descriptor).st_size
        pieces, at = {}, 0
        for offset, extent_bytes in [*sorted(extents), (size_bytes, 0)]:
            if offset > at:
                pieces[at] = os.pread(self.descriptor, offset - at, at)
            at = offset + extent_bytes
        return Outline(size_bytes, pieces)


class Window:
    """A file that HDF5 reads, brought by a `Source`: whole, or in the pieces that are asked for, each of them once."""

    def __init__(self, source: Source, *, whole: bool) -> None:
        self.failure: DlemuError | OSError | None = None
        """What the storage said of a read that HDF5 asked for: look at it after each call of HDF5.

        HDF5 was given zeros instead. An error thrown through it would leave a file open inside, which then calls a
        window that is no more when Python ends.
        """
        self._source = source
        self._whole = source.read(0, source.size_bytes) if whole else None
        self._blocks: dict[int, memoryview] = {}
        self._extents: dict[int, memoryview] = {}
        self._position = 0

    def extents(self, places: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes at each (offset, bytes); those that lie one behind the other come by one read.

        Raises:
            DatasetError: the file has fewer.
        """
        if self._whole is not None:
            return [self._whole[offset : offset + size] for offset, size in places]
        missing = sorted(place for place in places if place[0] not in self._extents)
        for first, last in _runs(missing):
            start = missing[first][0]
            read = self._source.read(start, sum(missing[last]) - start)
            for offset, size in missing[first : last + 1]:
                self._extents[offset] = read[offset - start : offset - start + size]
        return [self._extents[offset] for offset, _ in places]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (self._source.size_bytes if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size_bytes: int) -> bytes:
        room = bytearray(size_bytes)
        return bytes(room[: self.readinto(memoryview(room))])

    def readinto(self, room: memoryview) -> int:
        try:
            done = self._copy(room)
        except (DlemuError, OSError) as error:
            self.failure = error
            room[:] = bytes(len(room))
            done = len(room)
        self._position += done
        return done

    def _copy(self, room: memoryview) -> int:
        start = self._position
        size = max(0, min(len(room), self._source.size_bytes - start))
        known = self._whole[start : start + size] if self._whole is not None else self._extents.get(start)
        if known is not None and len(known) >= size:
            room[:size] = known[:size]
            return size
        done = 0
        while done < size:
            number, within = divmod(start + done, BLOCK_BYTES)
            piece = self._block(number)[within : within + size - done]
            room[done : done + len(piece)] = piece
            done += len(piece)
        return size

    def _block(self, number: int) -> memoryview:
        if number not in self._blocks:
            start = number * BLOCK_BYTES
            read = self._source.read(start, min(BLOCK_BYTES, self._source.size_bytes - start))
            self._blocks[number] = memoryview(bytes(read))  # the structure outlives the memory of a batch
        return self._blocks[number]

    def forget(self) -> None:
        """Forget all but the structure."""
        self._extents = {}

    def flush(self) -> None:
        return


def _runs(places: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return (first, last) of each stretch of places that follow each other without a gap."""
    first = 0
    for i, place in enumerate(places):
        if i + 1 == len(places) or sum(place) != places[i + 1][0]:
            yield first, i
            first = i + 1
