"""CSV: one line of numbers per record, without a header, as pandas writes it (DLIO's datasets).

Each byte of a record is a decimal number, 0 to 255; commas separate the numbers of a line. The size of a file depends
on its numbers.
"""

from __future__ import annotations

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.formats import format_base as base
from datagen.formats._source import BufferedFile
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

STORED_BYTES = 914 / 256  # mean text of a payload byte: 10 numbers take 2 bytes with the comma, 90 take 3, 156 take 4
PARSER_BYTES = 256 << 10  # `DEFAULT_CHUNKSIZE` in pandas' parsers.pyx
COMMA, LINE_FEED = b",\n"
NUMBER_BYTES = 4  # maximum bytes of a number and its comma; TEXTS pads shorter ones with spaces
TEXTS = np.frombuffer(b"".join(f"{number},".ljust(NUMBER_BYTES).encode() for number in range(256)), np.uint32)


class Format(base.FormatBase):
    only_bytes = True
    transfer_bytes = PARSER_BYTES

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> None:
        """Return None: the size depends on the numbers."""

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        chunk = buffer.view(base.CHUNK_BYTES // NUMBER_BYTES)
        for start in range(0, job.payload_bytes, job.record_bytes):
            for offset in range(0, job.record_bytes, len(chunk)):
                numbers = chunk[: min(len(chunk), job.record_bytes - offset)]
                job.content.fill(numbers, job.running_index, start + offset)
                text = _text(numbers)
                writer.write(text[:-1] + b"\n" if offset + len(numbers) == job.record_bytes else text)

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> CsvFile:
        return CsvFile(data, samples)

    def read_matched(self, file: BufferedFile, samples: int) -> None:
        """Read as pandas' parser does: chunks of a buffered file, until a read returns nothing."""
        while file.read(PARSER_BYTES):
            continue


class CsvFile(base.OpenFile):
    """A file in memory, split into lines."""

    def __init__(self, data: memoryview, samples: int) -> None:
        self._data = data
        text = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(text == LINE_FEED)
        if len(ends) != samples or ends[-1] + 1 != len(text):
            tail = " and an incomplete one" if len(text) and text[-1] != LINE_FEED else ""
            raise base.DamagedError(f"{len(ends)} whole lines{tail} where {samples} samples were wanted", len(text))
        self._line_starts = [0, *(ends + 1).tolist()]

    def sample(self, index: int) -> base.Sample:
        start, next_start = self._line_starts[index], self._line_starts[index + 1]
        line = self._data[start : next_start - 1]
        # All lines of a file have as many numbers, so earlier lines hold `index * numbers` bytes of the payload
        numbers = int(np.count_nonzero(np.frombuffer(line, np.uint8) == COMMA)) + 1
        return base.Sample(line, memoryview(b""), index * numbers, decode=lambda: _decoded(line, start))


def _decoded(line: memoryview, offset: int) -> memoryview:
    """Return the numbers of a line at `offset` of the file. Raises DamagedError."""
    try:
        numbers = memoryview(bytes(map(int, bytes(line).split(b","))))
        if _text(numbers)[:-1] != line:  # spaces, signs or leading zeros
            raise ValueError("wanted digits and commas")
    except ValueError as error:
        raise base.DamagedError(f"a line that is not of numbers from 0 to 255 ({error})", offset) from error
    return numbers


def _text(numbers: memoryview) -> bytes:
    """Return numbers as text, each followed by a comma."""
    # Removing the padding afterwards takes a fifth of the time of selecting characters by a boolean array
    return TEXTS.take(np.frombuffer(numbers, np.uint8)).tobytes().translate(None, b" ")
