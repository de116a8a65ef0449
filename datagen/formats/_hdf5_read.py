"""Reading HDF5 files: the HDF5 library reports where records are, and their bytes are read from there directly.

HDF5 parses the structure once for all files with the same structure. Chunks are decoded by HDF5.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datagen.errors import DatasetError, DlemuError
from datagen.formats.format_base import OpenFile, Sample, Source, damaged
from datagen.registry import library

OLD_NAME = "records"  # name of the dataset of records in files of DLIO up to 2.0.0, which are read but never written
BLOCK_BYTES = 16 << 10  # the structure of a file, which consists of many small pieces, is read in blocks of this size
HDF5_ERRORS = (OSError, KeyError, ValueError, RuntimeError, TypeError, IndexError)
"""Errors that h5py raises for files that are damaged or not HDF5."""


def hdf5() -> Any:
    """Return h5py. Raises UserError if it is not installed."""
    return library("h5py", "hdf5")


def row_bytes(path: str) -> int:
    """Return the stored size of a row (or chunk) of a file's largest multi-dimensional dataset; 0 without one."""
    found: list[Any] = []
    with contextlib.suppress(*HDF5_ERRORS, ZeroDivisionError), hdf5().File(path, "r") as file:
        file.visititems(lambda _, item: found.append(item) if len(getattr(item, "shape", None) or ()) > 1 else None)
        largest = max(found, key=lambda item: item.nbytes)
        row = math.prod(largest.chunks or largest.shape[1:])
        return max(1, int(largest.id.get_storage_size() * row // largest.size))
    return 0


class Hdf5File(OpenFile):
    """One open file. Its `parts` are the datasets of records, each of which holds a part of every sample."""

    stays_open = True

    def __init__(self, source: Source, samples: int, known: Known, *, called: bool = False) -> None:
        """With `called`, read as HDF5 would: first the structure, then each record or chunk."""
        self._source = source
        self._gathered: memoryview | None = None
        self._decoded: memoryview | None = None
        # A file of one sample is read whole, by one call; of a file of several samples, only what is requested
        self._whole = samples == 1
        self._file = CalledFile(source) if called else SourceFile(source, whole=self._whole)
        self._parts = self._known_parts(known) or self._parts_by_hdf5(samples)
        self._record_bytes = sum(part.bytes for part in self._parts)
        self._is_plain = all(isinstance(part, _Contiguous) for part in self._parts)
        if self._is_plain and self._whole and source.size_bytes not in known and len(known) < _MAX_KNOWN:
            known[source.size_bytes] = self._structure()

    def _known_parts(self, known: Known) -> Sequence[_Contiguous | _Chunked]:
        """Return the parts of a known file that has the same bytes outside its records; empty if there is none.

        HDF5 would find the same structure, but takes a millisecond.
        """
        structure = known.get(self._source.size_bytes) if self._whole else None
        if structure is None or self._bytes_at(structure.gaps) != structure.around:
            return ()
        return structure.parts

    def _structure(self) -> Structure:
        """Return what later files of the same size are compared with."""
        parts = tuple(part for part in self._parts if isinstance(part, _Contiguous))
        if isinstance(self._file, CalledFile):
            return Structure(list(self._file.structure), list(self._file.structure.values()), parts)
        gaps, end = [], 0
        for start, size in sorted((part.offset, part.samples * part.bytes) for part in parts):
            gaps.append((end, start - end))
            end = start + size
        gaps.append((end, self._source.size_bytes - end))
        return Structure(gaps, self._bytes_at(gaps), parts)

    def _bytes_at(self, gaps: list[tuple[int, int]]) -> list[bytes]:
        return [bytes(piece) for piece in self._file.around(gaps)]

    def _parts_by_hdf5(self, samples: int) -> Sequence[_Contiguous | _Chunked]:
        """Let HDF5 read the structure, and check that it fits the settings and the file."""
        source = self._source
        self._file.probe()  # a failing storage must not first fail inside h5f.open, which would leak resources
        self._check_storage()
        try:
            file = _open(self._file)
            # HDF5 must close the file before Python exits: later it would call a file object that no longer exists
            close = weakref.finalize(self, file.close)
            parts = [_part(dataset) for dataset in _records(file)]
        except HDF5_ERRORS as error:
            raise self._failed("no readable HDF5 structure", error) from error
        self._check_storage()
        for part in parts:
            if part.samples != samples:
                problem = f"a dataset holds {part.samples} samples, not {samples} as in the settings"
                raise damaged(source.path, problem, 0)
            if isinstance(part, _Contiguous) and part.offset + part.samples * part.bytes > source.size_bytes:
                raise damaged(source.path, "a dataset ends beyond the end of the file", part.offset)
        if all(isinstance(part, _Contiguous) for part in parts):
            close()
        return parts

    def sample(self, index: int) -> Sample:
        try:
            extents = [extent for part in self._parts for extent in part.extents(index)]
        except HDF5_ERRORS as error:
            raise self._failed(f"no readable chunks of sample {index}", error) from error
        self._check_storage()
        if isinstance(self._file, CalledFile):
            for part in self._parts:
                if isinstance(part, _Contiguous):
                    self._file.sieve(*next(part.extents(index)), part.offset + part.samples * part.bytes)
        data = self._joined(self._file.extents(extents))
        offset = index * self._record_bytes
        if self._is_plain:
            return Sample(data, data, offset)
        return Sample(data, memoryview(b""), offset, decode=lambda: self._decode(index))

    def forget(self) -> None:
        """Release the samples read so far."""
        self._file.forget()
        self._gathered = self._decoded = None

    def _joined(self, pieces: list[memoryview]) -> memoryview:
        """Return the bytes of all pieces, copied if there are several."""
        if len(pieces) == 1:
            return pieces[0]
        size = sum(map(len, pieces))
        if self._gathered is None or len(self._gathered) < size:
            self._gathered = self._source.scratch(size)
        target = self._gathered[:size]
        np.concatenate([np.frombuffer(piece, np.uint8) for piece in pieces], out=np.frombuffer(target, np.uint8))
        return target

    def _decode(self, index: int) -> memoryview:
        """Let HDF5 decode a sample from its chunks, which have been read into memory."""
        self._decoded = self._decoded or self._source.scratch(self._record_bytes)
        done = 0
        try:
            for part in self._parts:
                out = self._decoded[done : done + part.bytes]
                if isinstance(part, _Chunked):
                    part.read(index, out)
                else:
                    (out[:],) = self._file.extents([*part.extents(index)])
                done += part.bytes
        except HDF5_ERRORS as error:
            raise self._failed(f"no readable chunks of sample {index}", error) from error
        self._check_storage()
        return self._decoded

    def _check_storage(self) -> None:
        """Raise the storage's error if a read failed during the last call of HDF5."""
        if self._file.failure is not None:
            raise self._file.failure

    def _failed(self, problem: str, error: Exception) -> DatasetError | OSError:
        if isinstance(self._file.failure, DatasetError | OSError):
            return self._file.failure
        return damaged(self._source.path, f"{problem} ({error})", 0)


@dataclass(frozen=True)
class _Contiguous:
    """A contiguous dataset."""

    samples: int
    bytes: int  # bytes of one sample
    offset: int

    def extents(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, bytes) of a sample."""
        yield self.offset + index * self.bytes, self.bytes


@dataclass(frozen=True)
class Structure:
    """Where the records of an unchunked file are, and the bytes outside of the records."""

    gaps: list[tuple[int, int]]
    """(offset, bytes) of the ranges outside of the records, or of those that HDF5 reads of them."""
    around: list[bytes]  # the bytes in these ranges
    parts: tuple[_Contiguous, ...]


Known = dict[int, Structure]  # structure of a file that was read, by file size
_MAX_KNOWN = 1024  # the structure of files of further sizes is always read by HDF5, which is slower


def _part(dataset: Any) -> _Contiguous | _Chunked:
    """Return a dataset of records, as one that is contiguous or chunked."""
    layout = dataset.get_create_plist()
    chunk: tuple[int, ...] = layout.get_chunk() if layout.get_layout() == hdf5().h5d.CHUNKED else ()
    sample_bytes = math.prod(dataset.shape[1:]) * int(dataset.get_type().get_size())
    if chunk:
        return _Chunked(dataset, chunk, sample_bytes)
    offset: int | None = dataset.get_offset()
    if offset is None:
        raise ValueError("a dataset whose bytes are not in the file")
    return _Contiguous(dataset.shape[0], sample_bytes, offset)


class _Chunked:
    """A chunked dataset."""

    def __init__(self, dataset: Any, chunk: tuple[int, ...], sample_bytes: int) -> None:
        self._dataset, self._chunk = dataset, chunk
        self._shape: tuple[int, ...] = dataset.shape
        self.samples = self._shape[0]
        self.bytes = sample_bytes

    def extents(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, bytes) of the chunks that hold parts of a sample."""
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


def _open(file: SourceFile) -> Any:
    h5py = hdf5()
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    return h5py.h5f.open(b"file", h5py.h5f.ACC_RDONLY, access)


def _records(file: Any) -> Iterator[Any]:
    """Yield the datasets of records, opened: `records_0`, `records_1` and so on, or `OLD_NAME`."""
    h5py = hdf5()
    group = h5py.h5g.open(file, b"/")
    names = itertools.takewhile(lambda name: name in group, (b"records_%d" % part for part in itertools.count()))
    for name in list(names) or [OLD_NAME.encode() if OLD_NAME.encode() in group else b"records_0"]:
        yield h5py.h5d.open(group, name)


class SourceFile:
    """A file object for HDF5 that reads from a `Source`: the whole file, or each piece when it is first requested."""

    def __init__(self, source: Source, *, whole: bool) -> None:
        self.failure: DlemuError | OSError | None = None
        """The storage's error of a failed read, to be checked after each call of HDF5, which got zeros instead.

        An exception raised through HDF5 would leave a file open in it, which calls this object when Python exits.
        """
        self._source, self._at = source, 0
        self._whole = source.read(0, source.size_bytes) if whole else None
        self._blocks: dict[int, memoryview] = {}
        self._extents: dict[int, memoryview] = {}

    def extents(self, extents: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of each extent (offset, bytes), reading adjacent ones by one call. Raises DatasetError."""
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
        """Return the bytes of ranges (offset, bytes) outside of records. Raises DatasetError."""
        return self.extents(gaps)

    def probe(self) -> None:
        """Read from the file, which sets `failure` if the storage fails."""
        self.readinto(memoryview(bytearray(1)))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._source.size_bytes if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, out: memoryview) -> int:
        try:
            done = self._copy(out)
        except (DlemuError, OSError) as error:
            self.failure = error
            out[:] = bytes(len(out))
            done = len(out)
        self._at += done
        return done

    def flush(self) -> None:
        return

    def _copy(self, out: memoryview) -> int:
        start = self._at
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
            self._blocks[number] = memoryview(bytes(read))  # copied, because the memory of a batch is reused
        return self._blocks[number]

    def forget(self) -> None:
        """Release all bytes except those of the structure."""
        self._extents = {}


SIGNATURE_BYTES = 8  # bytes that HDF5 reads of a file first
SIEVE_BYTES = 64 << 10
"""Minimum that HDF5 reads of a contiguous dataset, and keeps in a buffer (`H5Pset_sieve_buf_size`)."""


class CalledFile(SourceFile):
    """A file that is read by HDF5's own calls: HDF5 makes those for the structure, this class those for records."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, whole=False)
        self.structure: dict[tuple[int, int], bytes] = {}
        """The reads that HDF5 made of the structure: (offset, bytes) -> data."""
        self._signature: memoryview | None = None
        self._sieves: dict[int, tuple[int, memoryview]] = {}
        """Sieve buffer (offset, data) of each dataset, by the dataset's end."""

    def probe(self) -> None:
        try:
            self._signature = self._source.read(0, min(SIGNATURE_BYTES, self._source.size_bytes))
        except (DlemuError, OSError) as error:
            self.failure = error

    def extents(self, extents: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of each extent (offset, bytes), by one call each."""
        for offset, size in extents:
            if offset not in self._extents:
                self._extents[offset] = self._source.read(offset, size)
        return [self._extents[offset] for offset, _ in extents]

    def around(self, gaps: list[tuple[int, int]]) -> list[memoryview]:
        return [self._source.read(offset, size) for offset, size in gaps]

    def sieve(self, offset: int, size_bytes: int, end: int) -> None:
        """Read a small record through the sieve buffer of its dataset, which ends at `end`, as HDF5 does."""
        if size_bytes > SIEVE_BYTES or offset in self._extents:
            return
        start, held = self._sieves.get(end, (0, memoryview(b"")))
        if not start <= offset <= offset + size_bytes <= start + len(held):
            read = self._source.read(offset, min(SIEVE_BYTES, end - offset))
            start, held = self._sieves[end] = offset, memoryview(bytes(read)) if len(read) > size_bytes else read
        self._extents[offset] = held[offset - start : offset - start + size_bytes]

    def _copy(self, out: memoryview) -> int:
        start, size = self._at, max(0, min(len(out), self._source.size_bytes - self._at))
        known = self._extents.get(start)  # a chunk that is being decoded
        if known is None or len(known) < size:
            first, self._signature = self._signature, None
            known = first if first and not start and len(first) == size else self._source.read(start, size)
            self.structure[start, size] = bytes(known)
        out[:size] = known[:size]
        return size


def _runs(extents: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the indexes (first, last) of each run of adjacent extents."""
    first = 0
    for i, extent in enumerate(extents):
        if i + 1 == len(extents) or sum(extent) != extents[i + 1][0]:
            yield first, i
            first = i + 1
