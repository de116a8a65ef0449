"""NumPy's .npy: one array (d1, d2, ..., samples) of records, as np.save writes it (DLIO's datasets).

A sample is a slice of the array at one index of the last axis; `npz` holds such arrays, too. Format (NEP 1): a magic of
6 bytes, the version, the length of the header, the header as a Python literal, the items.
"""

from __future__ import annotations

import ast
import functools
import math
import re
import struct
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer, round_up
from datagen.formats import format_base as base
from datagen.formats._source import BufferedFile
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

_PREFIX = struct.Struct("<6sBxH")  # magic, major version, and in files of version 1 the length of the header
PREFIX_BYTES = _PREFIX.size
MAGIC = b"\x93NUMPY"
ALIGNMENT = 64  # NumPy pads the header so that the items begin at a multiple of this
GROWTH_DIGITS = 21  # characters that NumPy reserves for the first axis: one more than a 64-bit number has digits
CACHED_HEADERS = 256  # size of the cache of parsed headers
STDIO_BYTES = 8192  # glibc's BUFSIZ: the maximum size of its buffers
_HEADER = re.compile(rb"\{'descr': '([^']*)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \} *\n")


class Format(base.FormatBase):
    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return array_bytes(np.dtype(spec.record_element_type).str, shapes, spec.num_samples_per_file)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        writer.write(header(job))
        super().write(job, writer, buffer)

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> ArrayFile:
        magic, version, header_size = _PREFIX.unpack_from(data)
        if magic != MAGIC or version != 1:
            raise base.DamagedError("no NumPy array of file format 1.0, to which np.save writes all plain types")
        end = PREFIX_BYTES + header_size
        parsed, payload = _parse_header(bytes(data[PREFIX_BYTES:end])), data[end:]
        if len(payload) != parsed.payload_bytes:
            raise base.DamagedError(f"the array has {len(payload)} bytes, which do not make {parsed.shape_and_type}")
        return ArrayFile(parsed, payload, samples, scratch)

    def read_matched(self, file: BufferedFile, samples: int) -> None:
        """Read as np.load does: the header by Python's buffered file, the items by np.fromfile."""
        file.read(header_bytes(file.read(PREFIX_BYTES)))
        read_by_stdio(file, file.position)

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        with open(path, "rb") as file:  # given a path, np.load leaves a damaged file open
            return sample_of(np.load(file), index, samples)


class Header(NamedTuple):
    payload_bytes: int
    item_bytes: int
    fortran_order: bool
    last_axis: int  # its length, which is the number of samples in DLIO's datasets
    shape_and_type: str  # for messages


def header(job: base.FileJob) -> bytes:
    """Return the header of the array that holds a file's records, samples last."""
    return array_header(np.dtype(job.spec.record_element_type).str, (*job.shape, job.spec.num_samples_per_file))


def array_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return the header (version 1.0) of a C-ordered array of NumPy's type `descr`, as np.save writes it."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (GROWTH_DIGITS - len(str(shape[0])))
    header_size = round_up(PREFIX_BYTES + len(text) + 1, ALIGNMENT) - PREFIX_BYTES
    return _PREFIX.pack(MAGIC, 1, header_size) + text.ljust(header_size - 1).encode() + b"\n"


def array_bytes(descr: str, shapes: base.Sizes, samples: int) -> base.Sizes:
    """Return the size of each .npy file, given the shapes of their records (files, axes)."""
    # All headers have one size: shapes are equal, or random with two axes, whose numbers of digits fit into the padding
    largest = tuple(shapes.max(axis=0, initial=1).tolist())
    header_size = len(array_header(descr, (*largest, samples)))
    return cast("base.Sizes", header_size + shapes.prod(axis=1) * samples * np.dtype(descr).itemsize)


def header_bytes(prefix: memoryview) -> int:
    """Return the size of the header that follows `prefix`, a file's first `PREFIX_BYTES`; 0 if it is no .npy."""
    return int.from_bytes(prefix[8:PREFIX_BYTES], "little") if bytes(prefix[:6]) == MAGIC else 0


@functools.lru_cache(CACHED_HEADERS)  # most files of a dataset have the same header
def _parse_header(text: bytes) -> Header:
    """Parse a header. Raises DamagedError for an unsupported array, any exception for a damaged header."""
    match = _HEADER.fullmatch(text)
    if match is None:  # a structured type, or other spacing than NumPy's
        fields = ast.literal_eval(text.decode("latin-1").strip())
        descr, fortran_order, shape = fields["descr"], bool(fields["fortran_order"]), tuple(fields["shape"])
    else:
        descr, fortran_order = match[1].decode(), match[2] == b"True"
        shape = tuple(int(axis) for axis in match[3].split(b",") if axis.strip())
    if str(descr).lstrip("<>=|").startswith("a"):  # NumPy 2 warns of this type; no release has written it
        raise base.DamagedError(f"the array is of type {descr}, which NumPy does not write")
    dtype = np.dtype(descr)
    if dtype.hasobject:
        raise base.DamagedError("the array holds Python objects, which only pickle can read")
    payload_bytes = math.prod(shape) * dtype.itemsize
    last_axis = shape[-1] if shape else 1
    return Header(payload_bytes, dtype.itemsize, fortran_order, last_axis, f"{shape} of {descr}")


def read_by_stdio(file: BufferedFile, offset: int) -> None:
    """Read from `offset` to the end by the calls of np.fromfile, which uses C's fseek and fread.

    fseek reads from the last multiple of the buffer size up to `offset`. fread fills the buffer from that multiple on,
    then reads all further whole buffers by one call, and then the rest. Source: glibc, `_IO_file_xsgetn`, and strace.
    """
    buffer_bytes = min(file.block_bytes, STDIO_BYTES)
    position = offset - offset % buffer_bytes
    if position < offset:
        file.call(position, offset - position)
    position += file.call(position, buffer_bytes)
    whole_bytes = max(0, file.size_bytes - position) // buffer_bytes * buffer_bytes
    if whole_bytes:
        position += file.call(position, whole_bytes)
    if position < file.size_bytes:
        file.call(position, buffer_bytes)


class ArrayFile(base.OpenFile):
    """An array in memory; a sample is copied only if the array interleaves samples (C order)."""

    def __init__(self, header: Header, payload: memoryview, samples: int, scratch: base.Scratch) -> None:
        self._header = header
        self._payload = payload
        self._samples = samples
        self._scratch = scratch
        self._copy: memoryview | None = None  # memory for a copied sample
        self._unchecked = payload  # what `reader.verify` compares: all of it with the first sample, nothing with others

    def sample(self, index: int) -> base.Sample:
        """Return x[..., index]: a view in Fortran order, a copy in C order."""
        header, payload, samples = self._header, self._payload, self._samples
        if samples == 1:
            return base.Sample(payload, payload, 0)
        if header.last_axis != samples:
            raise base.DamagedError(f"the array holds {header.last_axis} samples, not {samples} as in the settings")
        size = len(payload) // samples
        unchecked, self._unchecked = self._unchecked, payload[:0]
        if header.fortran_order:
            return base.Sample(payload[index * size : (index + 1) * size], unchecked, 0)
        items = np.frombuffer(payload, np.uint8).reshape(-1, samples, header.item_bytes)
        self._copy = self._copy or self._scratch(size)
        np.frombuffer(self._copy, np.uint8).reshape(-1, header.item_bytes)[...] = items[:, index]
        return base.Sample(self._copy, unchecked, 0)


def sample_of(array: NDArray[np.generic], index: int, samples: int) -> base.Sample:
    """Return sample `index` of an array that np.load returned."""
    payload = _in_memory_order(array)
    return base.Sample(payload if samples == 1 else _in_memory_order(array[..., index]), payload, 0)


def _in_memory_order(array: NDArray[np.generic]) -> memoryview:
    """Return an array's bytes in memory order; they are copied only if the array is not contiguous."""
    return np.ascontiguousarray(array.reshape(-1, order="A")).view(np.uint8).data
