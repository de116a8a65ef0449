"""Reads HDF5 files: the HDF5 library locates the records and decodes chunks; dlemu itself reads the records' bytes.

Files of equal size mostly have the same metadata. dlemu therefore caches the metadata of one file of each size, and
where its records are. The library parses another file of that size only if its metadata differs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from datagen.errors import DlemuError
from datagen.formats._source import SourceStream, merge_spans
from datagen.formats.format_base import DamagedError, OpenFile, Sample, Source
from datagen.registry import library

OLD_NAME = "records"  # name of the dataset of records in files of DLIO up to 2.0.0, which dlemu reads but never writes
BLOCK_BYTES = 16 << 10  # unit for reading metadata, which consists of many small parts
SIGNATURE_BYTES = 8  # HDF5 reads these first
SIEVE_BYTES = 64 << 10  # HDF5's buffer for small reads of a contiguous dataset (`H5Pset_sieve_buf_size`)
HDF5_ERRORS = (OSError, KeyError, ValueError, RuntimeError, TypeError, IndexError)  # raised by h5py for damaged files
Extent = tuple[int, int]  # (offset, bytes)


def hdf5() -> Any:
    """Return h5py. Raises UserError if it is not installed."""
    return library("h5py", "hdf5")


class Metadata(NamedTuple):
    """The metadata of a file without chunks: the bytes that HDF5 reads, and the datasets that it finds in them."""

    reads: dict[Extent, bytes]
    datasets: Sequence[_Dataset]


MetadataCache = dict[int, Metadata]  # by file size
_MAX_CACHED = 1024  # maximum number of file sizes in a cache; HDF5 parses files of other sizes, which is slower


class Hdf5File(OpenFile):
    """An open file. Each of its datasets of records holds a part of every sample."""

    stays_open = True

    def __init__(self, source: Source, samples: int, cache: MetadataCache, *, matched: bool = False) -> None:
        """With `matched`, read as HDF5 would: first the metadata, then each record or chunk."""
        self._source = source
        self._joined = memoryview(b"")  # memory for a sample that is read in several parts
        self._decoded = memoryview(b"")  # memory for a decoded sample
        self._file = SourceFile(source, matched=matched)
        metadata = cache.get(source.size_bytes) if samples == 1 else None
        if metadata and all(source.read(*extent) == data for extent, data in metadata.reads.items()):
            self._datasets = metadata.datasets  # it would take HDF5 a millisecond to find them
        else:
            self._datasets = self._parse_metadata(samples)
        self._record_bytes = sum(dataset.bytes for dataset in self._datasets)
        self._is_contiguous = not any(dataset.chunk for dataset in self._datasets)
        if self._is_contiguous and samples == 1 and len(cache) < _MAX_CACHED:
            cache.setdefault(source.size_bytes, Metadata(self._file.metadata, self._datasets))

    def _parse_metadata(self, samples: int) -> Sequence[_Dataset]:
        """Return the datasets of records that HDF5 finds. Raises DamagedError if they do not match settings or file."""
        # A broken storage is to fail here: if a read failed within h5f.open, resources would leak
        self._file.read_metadata(0, min(SIGNATURE_BYTES, self._source.size_bytes))
        h5py = hdf5()
        with self._hdf5_errors("no readable HDF5 metadata"):
            access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
            access.set_fileobj_driver(h5py.h5fd.fileobj_driver, self._file)
            access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
            file = h5py.h5f.open(b"file", h5py.h5f.ACC_RDONLY, access)
            # HDF5 must close the file before Python exits. Later, it would call a file object that no longer exists
            close = weakref.finalize(self, file.close)
            group = h5py.h5g.open(file, b"/")
            numbered = (b"records_%d" % number for number in itertools.count())
            names = list(itertools.takewhile(lambda name: name in group, numbered))
            if not names:  # without either name, HDF5 reports that records_0 is missing
                names = [OLD_NAME.encode() if OLD_NAME.encode() in group else b"records_0"]
            datasets = [_Dataset(h5py.h5d.open(group, name)) for name in names]
        for dataset in datasets:
            if dataset.samples != samples:
                raise DamagedError(f"a dataset holds {dataset.samples} samples, not {samples} as in the settings")
            if dataset.end > self._source.size_bytes:
                raise DamagedError("a dataset ends beyond the end of the file", dataset.offset)
        if not any(dataset.chunk for dataset in datasets):
            close()
        return datasets

    def sample(self, index: int) -> Sample:
        extents: list[Extent] = []
        for dataset in self._datasets:
            if dataset.chunk:
                with self._hdf5_errors(f"no readable chunks of sample {index}"):
                    extents += dataset.chunks(index)
            else:
                extents.append(dataset.extent(index))
                self._file.read_sieved(*extents[-1], dataset.end)
        parts = self._file.read_extents(extents)
        data = parts[0]
        if len(parts) > 1:  # the sample has several chunks, or is spread over several datasets
            size = sum(map(len, parts))
            if len(self._joined) < size:
                self._joined = self._source.scratch(size)
            data = self._joined[:size]
            np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=np.frombuffer(data, np.uint8))
        offset = index * self._record_bytes
        if self._is_contiguous:
            return Sample(data, data, offset)
        return Sample(data, memoryview(b""), offset, decode=lambda: self._decode(index))  # chunks must be decoded first

    def forget(self) -> None:
        """Release the samples read so far."""
        self._file.extent_data = {}
        self._joined = self._decoded = memoryview(b"")

    def _decode(self, index: int) -> memoryview:
        """Decode a sample by HDF5 from its chunks, which are in memory."""
        self._decoded = self._decoded or self._source.scratch(self._record_bytes)
        start = 0
        with self._hdf5_errors(f"no readable chunks of sample {index}"):
            for dataset in self._datasets:
                out = self._decoded[start : start + dataset.bytes]
                if dataset.chunk:
                    dataset.read(index, out)
                else:
                    (out[:],) = self._file.read_extents([dataset.extent(index)])
                start += dataset.bytes
        return self._decoded

    @contextlib.contextmanager
    def _hdf5_errors(self, problem: str) -> Iterator[None]:
        """Raise the storage's error if a read failed during calls of HDF5, else a DamagedError for an error of HDF5."""
        try:
            yield
        except HDF5_ERRORS as error:
            raise self._file.failure or DamagedError(f"{problem} ({error})") from error
        if self._file.failure is not None:
            raise self._file.failure


class _Dataset:
    """A dataset of records: contiguous from `offset` to `end` (exclusive), or in chunks of the shape `chunk`."""

    chunk: tuple[int, ...] = ()
    offset = end = 0

    def __init__(self, dataset: Any) -> None:
        self._shape: tuple[int, ...] = dataset.shape
        self.samples = self._shape[0]
        self.bytes = math.prod(self._shape[1:]) * int(dataset.get_type().get_size())  # of one sample
        layout = dataset.get_create_plist()
        if layout.get_layout() == hdf5().h5d.CHUNKED:
            self.chunk, self._dataset = layout.get_chunk(), dataset
            return
        offset: int | None = dataset.get_offset()
        if offset is None:
            raise ValueError("a dataset whose bytes are not in the file")
        self.offset, self.end = offset, offset + self.samples * self.bytes

    def extent(self, index: int) -> Extent:
        """Return the extent of a sample in a contiguous dataset."""
        return self.offset + index * self.bytes, self.bytes

    def chunks(self, index: int) -> list[Extent]:
        """Return the extents of the chunks that hold parts of a sample."""
        first_sample = index - index % self.chunk[0]
        grid = [range(0, axis, step) for axis, step in zip(self._shape[1:], self.chunk[1:], strict=True)]
        extents = []
        for start in itertools.product([first_sample], *grid):
            chunk = self._dataset.get_chunk_info_by_coord(start)
            if chunk.byte_offset is None:
                raise ValueError(f"the chunk at {start} was never written")
            extents.append((chunk.byte_offset, chunk.size))
        return extents

    def read(self, index: int, out: memoryview) -> None:
        """Read a sample into `out` by HDF5."""
        count = (1, *self._shape[1:])
        file_space = self._dataset.get_space()
        file_space.select_hyperslab((index, *[0] * (len(count) - 1)), count)
        array = np.frombuffer(out, self._dataset.dtype).reshape(count)
        self._dataset.read(hdf5().h5s.create_simple(count), file_space, array)


class SourceFile(SourceStream):
    """A file object for HDF5. With `matched`, it reads by HDF5's calls for metadata and records, else by few calls."""

    def __init__(self, source: Source, *, matched: bool) -> None:
        super().__init__(source)
        # The error of a failed read, for which HDF5 got zeros; to be checked after each call of HDF5. If it were
        # raised through HDF5, the file would stay open there, and HDF5 would call this object at exit.
        self.failure: DlemuError | OSError | None = None
        self.metadata: dict[Extent, bytes] = {}  # everything that HDF5 has read as metadata
        self._matched = matched
        self._blocks: dict[int, bytes] = {}  # of metadata, by offset; copied, because a batch's memory is reused
        self.extent_data: dict[int, memoryview] = {}  # records and chunks, by offset
        self._sieves: dict[int, tuple[int, memoryview]] = {}  # sieve buffers (offset, data), by end of their dataset

    def read_extents(self, extents: list[Extent]) -> list[memoryview]:
        """Return the bytes of each extent. Without `matched`, one call reads adjacent extents. Raises DatasetError."""
        missing = [extent for extent in extents if extent[0] not in self.extent_data]
        if not self._matched:
            missing.sort()
        spans = iter(missing if self._matched else merge_spans(missing))  # in the order of `missing`
        span_start, span = -1, memoryview(b"")
        for offset, size in missing:
            while not span_start <= offset <= offset + size <= span_start + len(span):  # the extent is in a later span
                span_start, span_bytes = next(spans)
                span = self.source.read(span_start, span_bytes)
            self.extent_data[offset] = span[offset - span_start : offset - span_start + size]
        return [self.extent_data[offset] for offset, _ in extents]

    def read_sieved(self, offset: int, size_bytes: int, end: int) -> None:
        """With `matched`, read a small record as HDF5 does: through a sieve buffer. `end` is where its dataset ends."""
        if not self._matched or size_bytes > SIEVE_BYTES or offset in self.extent_data:
            return
        start, sieve = self._sieves.get(end, (0, memoryview(b"")))
        if not start <= offset <= offset + size_bytes <= start + len(sieve):
            start, sieve = offset, self.source.read(offset, min(SIEVE_BYTES, end - offset))
            self._sieves.pop(end, None)
            if len(sieve) > size_bytes:  # it also serves later samples: copied, because a batch's memory is reused
                sieve = memoryview(bytes(sieve))
                self._sieves[end] = start, sieve
        self.extent_data[offset] = sieve[offset - start : offset - start + size_bytes]

    def readinto(self, out: bytearray | memoryview) -> int:  # type: ignore[override]  # as the base class
        size = max(0, min(len(out), self.source.size_bytes - self._position))
        try:
            data: memoryview | bytes | None = self.extent_data.get(self._position)  # a chunk that HDF5 decodes
            if data is None or len(data) < size:
                data = self.read_metadata(self._position, size)
            out[:size] = data[:size]
        except (DlemuError, OSError) as error:
            self.failure = error
            size = len(out)
            out[:] = bytes(size)
        self._position += size
        return size

    def read_metadata(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes of the metadata, from memory if they were read before. Raises DlemuError, OSError."""
        extent = offset, size_bytes
        if extent in self.metadata:
            return self.metadata[extent]
        if self._matched:
            data = bytes(self.source.read(offset, size_bytes))
        else:
            skipped = offset % BLOCK_BYTES
            block_starts = range(offset - skipped, offset + size_bytes, BLOCK_BYTES)
            for start in block_starts:
                if start not in self._blocks:
                    block_bytes = min(BLOCK_BYTES, self.source.size_bytes - start)
                    self._blocks[start] = bytes(self.source.read(start, block_bytes))
            data = b"".join(self._blocks[start] for start in block_starts)[skipped : skipped + size_bytes]
        self.metadata[extent] = data
        return data
