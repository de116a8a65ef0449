"""CSV: one line of numbers per record, without a header, as pandas writes it (DLIO's datasets).

Each byte of a record is a decimal number, 0 to 255; numbers are separated by commas and end in a line feed. The length
of the text depends on the numbers: 3.57 bytes each on average if they are random.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats import format_base as base
from datagen.formats._buffered import BufferedFile
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

PARSER_BYTES = 256 << 10  # `DEFAULT_CHUNKSIZE` in pandas' parsers.pyx
LIBRARY = base.LibraryReads(call="pandas.read_csv", transfer_bytes=PARSER_BYTES)
COMMA, LINE_FEED, ZERO = b",\n0"
NUMBER_BYTES = 4  # maximum bytes of a number with its comma or line feed
Bytes = NDArray[np.uint8]


class Format(base.FormatBase):
    """Reads and writes .csv."""

    only_bytes = True

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> None:
        """Return None: the length of the text depends on the numbers."""

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        texts = np.frombuffer(b"".join(f"{number},".ljust(NUMBER_BYTES).encode() for number in range(256)), np.uint32)
        chunk = buffer.view(base.CHUNK_BYTES // NUMBER_BYTES)
        for start in range(0, job.payload_bytes, job.record_bytes):
            for offset in range(0, job.record_bytes, len(chunk)):
                piece = chunk[: min(len(chunk), job.record_bytes - offset)]
                job.content.fill(piece, job.running_index, start + offset)
                # A fifth of the time of selecting the characters of each number by an array of booleans
                text = texts.take(np.frombuffer(piece, np.uint8)).tobytes().translate(None, b" ")
                if offset + len(piece) == job.record_bytes:
                    text = text[:-1] + b"\n"
                writer.write(text)

    def parse(self, path: str, data: memoryview, samples: int, scratch: base.Scratch) -> CsvFile:
        return CsvFile(path, data, samples)

    def open_called(self, source: base.Source, samples: int) -> CsvFile:
        """Read as pandas' parser does: a buffered file in pieces, until a read returns nothing."""
        file = BufferedFile(source)
        while file.read(PARSER_BYTES):
            continue
        return CsvFile(source.path, file.image, samples)

    def load_open(self, file: base.AnyFile, index: int, samples: int, indexes: base.Indexes) -> base.Sample:
        """Read the whole file; np.loadtxt decodes the sample's line."""
        sample = CsvFile(file.name, memoryview(file.read() or b""), samples).sample(index)
        return sample._replace(decode=lambda: _loadtxt(file.name, sample.data))


class CsvFile(base.OpenFile):
    """One file in memory, split into lines."""

    def __init__(self, path: str, data: memoryview, samples: int) -> None:
        self._path = path
        self._data = data
        text = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(text == LINE_FEED)
        if len(ends) != samples or ends[-1] + 1 != len(text):
            more = " and an incomplete one" if len(text) and text[-1] != LINE_FEED else ""
            problem = f"{len(ends)} whole lines{more} where {samples} samples were wanted"
            raise base.damaged(path, problem, len(text))
        self._bounds = [0, *(ends + 1).tolist()]

    def sample(self, index: int) -> base.Sample:
        first, last = self._bounds[index], self._bounds[index + 1]
        line = self._data[first : last - 1]
        # All lines of a file have equally many numbers, which gives the offset of this line in the payload
        numbers = int(np.count_nonzero(np.frombuffer(line, np.uint8) == COMMA)) + 1
        return base.Sample(line, memoryview(b""), index * numbers, decode=lambda: self._decode(line, first))

    def _decode(self, line: memoryview, offset: int) -> memoryview:
        try:
            return _numbers(np.frombuffer(line, np.uint8)).data
        except ValueError as error:
            raise base.damaged(self._path, str(error), offset) from error


def _numbers(line: Bytes) -> Bytes:
    """Parse the numbers of a line, vectorised: last digits are those before a comma, and so on.

    Raises ValueError: a field is not a whole number from 0 to 255 without sign or leading zeros.
    """
    ends = np.append(np.flatnonzero(line == COMMA), len(line))
    lengths = np.diff(ends, prepend=-1) - 1
    if not ((lengths >= 1) & (lengths <= 3)).all():
        raise ValueError("a field that is not a number from 0 to 255")
    digits = line - np.uint8(ZERO)  # unsigned: any byte that is not a digit gives 10 or more
    if ((digits > 9) & (line != COMMA)).any() or (digits[(ends - lengths)[lengths > 1]] == 0).any():
        raise ValueError("a field that is not a number from 0 to 255")
    values = digits[ends - 1].astype(np.int64)
    for column, worth in ((2, 10), (3, 100)):
        longer = lengths >= column
        values[longer] += worth * digits[ends[longer] - column].astype(np.int64)
    if (values > 255).any():
        raise ValueError("a field that is not a number from 0 to 255")
    numbers: Bytes = values.astype(np.uint8)
    return numbers


def _loadtxt(path: str, line: memoryview) -> memoryview:
    try:
        numbers: Bytes = np.loadtxt(io.BytesIO(line), np.uint8, delimiter=",", ndmin=1)
    except (ValueError, OverflowError) as error:
        raise base.damaged(path, f"np.loadtxt can't read a line ({error})", 0) from error
    return numbers.data
