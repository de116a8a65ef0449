"""What a row group holds, matched with the places in the dataset's payload that it must be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from datagen.formats.format_base import Source, damaged


class Values(NamedTuple):
    """Some of a file's payload as it was read."""

    file: int
    data: memoryview
    payload_offset: int


class Held:
    """A file of which some stretches are in memory: a `Source` that reads only the rest."""

    def __init__(self, source: Source, stretches: Sequence[tuple[int, memoryview]]) -> None:
        self.path, self.size_bytes, self.room = source.path, source.size_bytes, source.room
        self._source = source
        self._stretches = stretches

    def read(self, offset: int, size_bytes: int) -> memoryview:
        for begin, data in self._stretches:
            if begin <= offset and offset + size_bytes <= begin + len(data):
                return data[offset - begin : offset - begin + size_bytes]
        return self._source.read(offset, size_bytes)


def paired(file: int, path: str, payload: Sequence[tuple[int, int]], columns: Sequence[memoryview]) -> list[Values]:
    """Return the values of unpacked columns, cut as `payload` says it: (bytes, payload offset), column by column.

    Raises:
        DatasetError: the columns have more or fewer bytes.
    """
    found: list[Values] = []
    column, data, at = iter(columns), memoryview(b""), 0
    for size, payload_offset in payload:
        if at == len(data):
            data, at = next(column, memoryview(b"")), 0
        if at + size > len(data):
            break
        found.append(Values(file, data[at : at + size], payload_offset))
        at += size
    if len(found) < len(payload) or at < len(data) or next(column, None) is not None:
        raise damaged(path, "a row group has other values than its schema says,", 0)
    return found
