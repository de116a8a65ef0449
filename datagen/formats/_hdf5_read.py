"""The reading half of HDF5: where a file's records are, as HDF5 reports it, and their bytes from there.

HDF5 builds the structure once for all files that have the same; the bytes of records that are in one piece pass it
by. Unpacking chunks is HDF5's.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datagen.errors import DatasetError, DlemuError
from datagen.extras import library
from datagen.formats.format_base import Sample, Source, damaged

OLD_NAME = "records"
"""The one dataset of records in files of DLIO up to 2.0.0; files with it are read, and never written."""
BLOCK_BYTES = 16 << 10
"""HDF5's records of a file's structure are read in pieces of this, which hold several."""
HDF5_ERRORS = (OSError, KeyError, ValueError, RuntimeError, TypeError, IndexError)
"""What h5py raises of files that are damaged or foreign."""


def hdf5() -> Any:
    """Return h5py. Raises UserError where it is not installed."""
    return library("h5py", "hdf5")


class Hdf5File:
    """One file: its structure as HDF5 reports it, its samples from where they lie."""

    def __init__(self, source: Source, samples: int, known: Known, *, called: bool = False) -> None:
        """Begin; with `called` each read is one that HDF5 makes: of the structure, and of each record or chunk."""
        self._source = source
        self._gathered: memoryview | None = None
        self._decoded: memoryview | None = None
        # A file of one sample is read as a whole, by one call; of several only what is asked for.
        self._whole = samples == 1
        self._window = Calls(source) if called else Window(source, whole=self._whole)
        self._parts = self._parts_as_in(known) or self._ask_hdf5(samples)
        self._record_bytes = sum(part.bytes for part in self._parts)
        self._is_plain = all(isinstance(part, _Stretch) for part in self._parts)
        if self._is_plain and self._whole and source.size_bytes not in known and len(known) < _MOST_KNOWN:
            known[source.size_bytes] = self._structure()

    def _parts_as_in(self, known: Known) -> Sequence[_Stretch | _Chunked]:
        """Return the parts of a known file that has the same bytes everywhere but in its records; else none.

        HDF5 would find the same structure in both, and finding it costs a millisecond.
        """
        structure = known.get(self._source.size_bytes) if self._whole else None
        if structure is None or self._bytes_at(structure.gaps) != structure.around:
            return ()
        return structure.parts

    def _structure(self) -> Structure:
        parts = tuple(part for part in self._parts if isinstance(part, _Stretch))
        if isinstance(self._window, Calls):
            return Structure(list(self._window.asked), list(self._window.asked.values()), parts)
        gaps, end = [], 0
        for start, size in sorted((part.offset, part.samples * part.bytes) for part in parts):
            gaps.append((end, start - end))
            end = start + size
        gaps.append((end, self._source.size_bytes - end))
        return Structure(gaps, self._bytes_at(gaps), parts)

    def _bytes_at(self, gaps: list[tuple[int, int]]) -> list[bytes]:
        return [bytes(piece) for piece in self._window.around(gaps)]

    def _ask_hdf5(self, samples: int) -> Sequence[_Stretch | _Chunked]:
        """Have HDF5 read the structure, and check what it found."""
        source = self._source
        self._window.look()  # storage that fails at once must not fail inside h5f.open, which leaks what it opened
        self._check_storage()
        try:
            file = _open(self._window)
            # HDF5 must let go of the file before Python ends: it would call a window that is no more.
            close = weakref.finalize(self, file.close)
            parts = [_part(dataset) for dataset in _records(file)]
        except HDF5_ERRORS as error:
            raise self._failed("no readable HDF5 structure", error) from error
        self._check_storage()
        for part in parts:
            if part.samples != samples:
                problem = f"a dataset holds {part.samples} samples, not {samples} as in the settings"
                raise damaged(source.path, problem, 0)
            if isinstance(part, _Stretch) and part.offset + part.samples * part.bytes > source.size_bytes:
                raise damaged(source.path, "a dataset ends beyond the end of the file", part.offset)
        if all(isinstance(part, _Stretch) for part in parts):
            close()
        return parts

    def sample(self, index: int) -> Sample:
        try:
            extents = [extent for part in self._parts for extent in part.extents(index)]
        except HDF5_ERRORS as error:
            raise self._failed(f"no readable chunks of sample {index}", error) from error
        self._check_storage()
        if isinstance(self._window, Calls):
            for part in self._parts:
                if isinstance(part, _Stretch):
                    self._window.sieve(*next(part.extents(index)), part.offset + part.samples * part.bytes)
        data = self._together(self._window.extents(extents))
        offset = index * self._record_bytes
        if self._is_plain:
            return Sample(data, data, offset)
        return Sample(data, memoryview(b""), offset, decode=lambda: self._decode(index))

    def forget(self) -> None:
        """Forget the samples read so far."""
        self._window.forget()
        self._gathered = self._decoded = None

    def _together(self, pieces: list[memoryview]) -> memoryview:
        """Return the bytes of all pieces, copied together if there are several."""
        if len(pieces) == 1:
            return pieces[0]
        size = sum(map(len, pieces))
        if self._gathered is None or len(self._gathered) < size:
            self._gathered = self._source.scratch(size)
        target = self._gathered[:size]
        np.concatenate([np.frombuffer(piece, np.uint8) for piece in pieces], out=np.frombuffer(target, np.uint8))
        return target

    def _decode(self, index: int) -> memoryview:
        """Let HDF5 put a sample together from its chunks, which are in memory by now."""
        self._decoded = self._decoded or self._source.scratch(self._record_bytes)
        done = 0
        try:
            for part in self._parts:
                out = self._decoded[done : done + part.bytes]
                if isinstance(part, _Chunked):
                    part.read(index, out)
                else:
                    (out[:],) = self._window.extents([*part.extents(index)])
                done += part.bytes
        except HDF5_ERRORS as error:
            raise self._failed(f"no readable chunks of sample {index}", error) from error
        self._check_storage()
        return self._decoded

    def _check_storage(self) -> None:
        """Raise the storage's error of a read during HDF5's last call."""
        if self._window.failure is not None:
            raise self._window.failure

    def _failed(self, problem: str, error: Exception) -> DatasetError | OSError:
        if isinstance(self._window.failure, DatasetError | OSError):
            return self._window.failure
        return damaged(self._source.path, f"{problem} ({error})", 0)


@dataclass(frozen=True)
class _Stretch:
    """A dataset that is in one piece."""

    samples: int
    bytes: int
    """Of one sample."""
    offset: int

    def extents(self, index: int) -> Iterator[tuple[int, int]]:
        """Return (offset, bytes) of a sample."""
        yield self.offset + index * self.bytes, self.bytes


@dataclass(frozen=True)
class Structure:
    """Where the records of a file lie that are not chunked, and all bytes around them."""

    gaps: list[tuple[int, int]]
    """(offset, bytes) of what is no record, or of what HDF5 requests of that."""
    around: list[bytes]
    """What stands there."""
    parts: tuple[_Stretch, ...]


Known = dict[int, Structure]
"""Size of a file -> the structure of one that was read."""
_MOST_KNOWN = 1024  # distinct file sizes; HDF5 reads the structure of any further one, which is right but slower


def _part(dataset: Any) -> _Stretch | _Chunked:
    layout = dataset.get_create_plist()
    chunk: tuple[int, ...] = layout.get_chunk() if layout.get_layout() == hdf5().h5d.CHUNKED else ()
    sample_bytes = math.prod(dataset.shape[1:]) * int(dataset.get_type().get_size())
    if chunk:
        return _Chunked(dataset, chunk, sample_bytes)
    offset: int | None = dataset.get_offset()
    if offset is None:
        raise ValueError("a dataset whose bytes are not in the file")
    return _Stretch(dataset.shape[0], sample_bytes, offset)


class _Chunked:
    """A dataset in chunks."""

    def __init__(self, dataset: Any, chunk: tuple[int, ...], sample_bytes: int) -> None:
        self._dataset, self._chunk = dataset, chunk
        self._shape: tuple[int, ...] = dataset.shape
        self.samples = self._shape[0]
        self.bytes = sample_bytes

    def extents(self, index: int) -> Iterator[tuple[int, int]]:
        """Return (offset, bytes) of the chunks that a sample has a share in."""
        first = index - index % self._chunk[0]
        grid = [range(0, axis, step) for axis, step in zip(self._shape[1:], self._chunk[1:], strict=True)]
        for cell in np.ndindex(*map(len, grid)):
            start = tuple(axis[i] for axis, i in zip(grid, cell, strict=True))
            chunk = self._dataset.get_chunk_info_by_coord((first, *start))
            if chunk.byte_offset is None:
                raise ValueError(f"the chunk at {(first, *start)} was never written")
            yield chunk.byte_offset, chunk.size

    def read(self, index: int, out: memoryview) -> None:
        """Read a sample by HDF5."""
        spaces = hdf5().h5s
        count = (1, *self._shape[1:])
        there = self._dataset.get_space()
        there.select_hyperslab((index, *[0] * (len(count) - 1)), count)
        array = np.frombuffer(out, self._dataset.dtype).reshape(count)
        self._dataset.read(spaces.create_simple(count), there, array)


def _open(window: Window) -> Any:
    h5py = hdf5()
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, window)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    return h5py.h5f.open(b"file", h5py.h5f.ACC_RDONLY, access)


def _records(file: Any) -> Iterator[Any]:
    """Open the datasets of records: `records_0` and those numbered after it, or the one that old files have."""
    h5py = hdf5()
    group = h5py.h5g.open(file, b"/")
    names = itertools.takewhile(lambda name: name in group, (b"records_%d" % part for part in itertools.count()))
    for name in list(names) or [OLD_NAME.encode() if OLD_NAME.encode() in group else b"records_0"]:
        yield h5py.h5d.open(group, name)


class Window:
    """A file that HDF5 reads, brought by a `Source`: whole, or in the pieces that are requested, each of them once."""

    def __init__(self, source: Source, *, whole: bool) -> None:
        self.failure: DlemuError | OSError | None = None
        """The storage's error of a read that HDF5 requested: look at it after each call of HDF5.

        HDF5 was given zeros instead. An error thrown through it would leave a file open inside, which then calls a
        window that is no more when Python ends.
        """
        self._source = source
        self._whole = source.read(0, source.size_bytes) if whole else None
        self._blocks: dict[int, memoryview] = {}
        self._extents: dict[int, memoryview] = {}
        self._position = 0

    def extents(self, extents: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes at each (offset, bytes); those that lie one behind the other come by one read.

        Raises:
            DatasetError: the file has fewer.
        """
        if self._whole is not None:
            return [self._whole[offset : offset + size] for offset, size in extents]
        missing = sorted(extent for extent in extents if extent[0] not in self._extents)
        for first, last in _runs(missing):
            start = missing[first][0]
            read = self._source.read(start, sum(missing[last]) - start)
            for offset, size in missing[first : last + 1]:
                self._extents[offset] = read[offset - start : offset - start + size]
        return [self._extents[offset] for offset, _ in extents]

    def around(self, gaps: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes at each (offset, bytes), which are no records. Raises DatasetError."""
        return self.extents(gaps)

    def look(self) -> None:
        """Read something, so that `failure` shows whether that is possible."""
        self.read(1)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (self._source.size_bytes if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size_bytes: int) -> bytes:
        out = bytearray(size_bytes)
        return bytes(out[: self.readinto(memoryview(out))])

    def readinto(self, out: memoryview) -> int:
        try:
            done = self._copy(out)
        except (DlemuError, OSError) as error:
            self.failure = error
            out[:] = bytes(len(out))
            done = len(out)
        self._position += done
        return done

    def _copy(self, out: memoryview) -> int:
        start = self._position
        size = max(0, min(len(out), self._source.size_bytes - start))
        known = self._whole[start : start + size] if self._whole is not None else self._extents.get(start)
        if known is not None and len(known) >= size:
            out[:size] = known[:size]
            return size
        done = 0
        while done < size:
            number, within = divmod(start + done, BLOCK_BYTES)
            piece = self._block(number)[within : within + size - done]
            out[done : done + len(piece)] = piece
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


SIGNATURE_BYTES = 8
"""What HDF5 reads of a file first."""
SIEVE_BYTES = 64 << 10
"""HDF5 reads at least so much of a dataset that is in one piece, and keeps it (`H5Pset_sieve_buf_size`)."""


class Calls(Window):
    """A file that is read by HDF5's own calls: those for its structure come through here, the others are made alike."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, whole=False)
        self.asked: dict[tuple[int, int], bytes] = {}
        """What HDF5 requested of the structure."""
        self._looked: memoryview | None = None
        self._sieves: dict[int, tuple[int, memoryview]] = {}

    def look(self) -> None:
        try:
            self._looked = self._source.read(0, min(SIGNATURE_BYTES, self._source.size_bytes))
        except (DlemuError, OSError) as error:
            self.failure = error

    def extents(self, extents: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes at each (offset, bytes), by a call for each."""
        for offset, size in extents:
            if offset not in self._extents:
                self._extents[offset] = self._source.read(offset, size)
        return [self._extents[offset] for offset, _ in extents]

    def around(self, gaps: list[tuple[int, int]]) -> list[memoryview]:
        return [self._source.read(offset, size) for offset, size in gaps]

    def sieve(self, offset: int, size_bytes: int, end: int) -> None:
        """Read a record of a dataset that ends there: of small ones HDF5 reads more than was requested."""
        if size_bytes > SIEVE_BYTES or offset in self._extents:
            return
        start, held = self._sieves.get(end, (0, memoryview(b"")))
        if not start <= offset <= offset + size_bytes <= start + len(held):
            read = self._source.read(offset, min(SIEVE_BYTES, end - offset))
            start, held = self._sieves[end] = offset, memoryview(bytes(read)) if len(read) > size_bytes else read
        self._extents[offset] = held[offset - start : offset - start + size_bytes]

    def _copy(self, out: memoryview) -> int:
        start, size = self._position, max(0, min(len(out), self._source.size_bytes - self._position))
        known = self._extents.get(start)  # of a chunk that is unpacked
        if known is None or len(known) < size:
            first, self._looked = self._looked, None
            known = first if first and not start and len(first) == size else self._source.read(start, size)
            self.asked[start, size] = bytes(known)
        out[:size] = known[:size]
        return size


def _runs(extents: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return (first, last) of each stretch of places that follow each other without a gap."""
    first = 0
    for i, extent in enumerate(extents):
        if i + 1 == len(extents) or sum(extent) != extents[i + 1][0]:
            yield first, i
            first = i + 1
