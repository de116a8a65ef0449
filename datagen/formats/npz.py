"""NumPy's .npz: a zip archive of two arrays, `x` (d1, d2, ..., samples) of records and `y` (samples) of zeros.

Files have the exact layout of `np.savez(path, x=..., y=[0] * samples)` (DLIO's datasets): two members, each with zip64
sizes in its local header, then the central directory. Format: APPNOTE.TXT of PKWARE; NEP 1 for the arrays in it.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats import _array, _zip
from datagen.formats.format_base import FileJob, Sample, Source, damaged
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StoredFile, Writer

X_NAME = "array x"


class Format:
    """Reads and writes .npz."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        if spec.compression not in ("none", "zip"):
            return [f"dataset.compression is {spec.compression}: format npz knows none and zip"]
        return []

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if spec.compression == "zip":
            return None
        samples = spec.num_samples_per_file
        x_bytes = _array.array_bytes(np.dtype(spec.record_element_type).str, shapes, samples)
        y_bytes = len(_array.array_header("<i8", (samples,))) + 8 * samples
        return _zip.archive_bytes("x.npy", x_bytes, "y.npy", y_bytes)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        samples = job.spec.num_samples_per_file
        method = _zip.DEFLATED if job.spec.compression == "zip" else _zip.STORED
        x = _zip.MemberWriter(writer, "x.npy", method, job.spec.compression_level)
        x.write(_array.header(job))
        _array.write_payload(job, buffer.view(_array.CHUNK_BYTES), x.write)
        x_entry = x.close()
        y = _zip.MemberWriter(writer, "y.npy", method, job.spec.compression_level)
        y.write(_array.array_header("<i8", (samples,)))
        y.write(bytes(8 * samples))
        writer.write(_zip.directory([x_entry, y.close()], writer.position))

    def open(self, source: Source, samples: int) -> _array.Samples:
        """Read the archive whole, by one call; nothing is copied unless it is deflated or its samples interleave."""
        data = source.read(0, source.size_bytes)
        try:
            entry = _zip.find_entry(data, b"x.npy")
            start = entry.start
            array = _array.parse(_member(source, data, entry), X_NAME)
        except _zip.StructureError as error:
            raise damaged(source.path, str(error), error.offset) from error
        except _array.ArrayError as error:
            raise damaged(source.path, str(error), start) from error
        except (struct.error, ValueError, SyntaxError, TypeError, LookupError) as error:
            raise damaged(source.path, f"no readable .npz structure ({error})", 0) from error
        return _array.Samples(source, array, samples, X_NAME)

    def load(self, path: str, index: int, samples: int) -> Sample:
        # Opened here, for np.load leaves the file open when it is no archive.
        with open(path, "rb") as file:
            return _loaded(path, file, index, samples)

    def load_stream(self, file: StoredFile, index: int, samples: int) -> Sample:
        return _loaded(file.name, file, index, samples)


def _loaded(path: str, file: BinaryIO | StoredFile, index: int, samples: int) -> Sample:
    try:
        with np.load(file) as archive:
            return _array.loaded(archive["x"], index, samples)
    except (ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, f"np.load can't read array x ({error})", 0) from error


def _member(source: Source, data: memoryview, entry: _zip.Entry) -> memoryview:
    """Return the plain bytes of a member."""
    packed, start = _zip.packed(data, entry)
    if entry.method == _zip.STORED:
        return packed
    return _zip.inflate(packed, source.room(entry.plain_bytes), start)
