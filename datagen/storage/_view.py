"""What readers share that have the whole file as memory."""

from __future__ import annotations


class ViewReader:
    """Reads by copying out of a view of a file's bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.size_bytes = len(data)
        self.read_calls = 0
        self.app_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        piece = self._data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self.read_calls += 1
        self.app_bytes += len(piece)
        return len(piece)

    def close(self) -> None:
        self._data.release()
