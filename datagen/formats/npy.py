"""NumPy's .npy: one array (d1, d2, ..., samples) of records, as np.save writes it (DLIO's datasets)."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats import _array
from datagen.formats._buffered import BufferedFile, read_by_stdio
from datagen.formats.format_base import CallSource, FileJob, LibraryReads, Sample, Source, damaged
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

LIBRARY = LibraryReads(call="np.load", cpu_ratio=2.0)
NAME = "the array"


class Format:
    """Reads and writes .npy."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        if spec.compression != "none":
            return [f"dataset.compression is {spec.compression}: format npy supports only none"]
        return []

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return _array.array_bytes(np.dtype(spec.record_element_type).str, shapes, spec.num_samples_per_file)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        writer.write(_array.header(job))
        _array.write_payload(job, buffer.view(_array.CHUNK_BYTES), writer.write)

    def open(self, source: Source, samples: int) -> _array.Samples:
        """Read the whole array by one call; a sample is copied only if samples are interleaved."""
        data = source.read(0, source.size_bytes)
        return _array.Samples(source, _parsed(source.path, data), samples, NAME)

    def open_called(self, source: CallSource, samples: int) -> _array.Samples:
        """Read as np.load does: the header by Python's buffered file, the items by np.fromfile."""
        file = BufferedFile(source)
        file.read(_array.header_bytes(file.read(_array.PREFIX_BYTES)))
        array = _parsed(source.path, file.image)
        read_by_stdio(file, source.size_bytes - len(array.payload), len(array.payload))
        return _array.Samples(source, array, samples, NAME)

    def parse_whole(self, path: str, data: memoryview) -> Sample:
        payload = _parsed(path, data).payload
        return Sample(payload, payload, 0)

    def load(self, path: str, index: int, samples: int) -> Sample:
        return _load_sample(path, path, index, samples)

    def load_stream(self, file: LibraryFile, index: int, samples: int) -> Sample:
        return _load_sample(file.name, file, index, samples)


def _parsed(path: str, data: memoryview) -> _array.Array:
    try:
        return _array.parse(data, NAME)
    except _array.ArrayError as error:
        raise damaged(path, str(error), 0) from error
    except (struct.error, ValueError, SyntaxError, TypeError, LookupError) as error:
        raise damaged(path, f"no readable .npy structure ({error})", 0) from error


def _load_sample(path: str, where: str | LibraryFile, index: int, samples: int) -> Sample:
    try:
        return _array.sample_of(np.load(where), index, samples)
    except (ValueError, IndexError, EOFError) as error:
        raise damaged(path, f"np.load can't read it ({error})", 0) from error
