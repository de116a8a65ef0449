"""What every storage backend does: open a file for reading, create one under a temporary name."""

from __future__ import annotations

from typing import Protocol

Bytes = bytes | bytearray | memoryview


class Reader(Protocol):
    """One file open for reading. It counts what the application asked for and got."""

    size_bytes: int
    read_calls: int
    """Calls that fetched bytes."""
    app_bytes: int
    """Bytes those calls brought."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from the file at `offset` and return the bytes got: fewer only at the end of the file.

        Address, length and offset are multiples of the storage's alignment. Raises OSError.
        """
        ...

    def close(self) -> None: ...


class Writer(Protocol):
    """One file being made. It has its name only after `commit`. Raises OSError."""

    @property
    def position(self) -> int:
        """Offset at which the next `write` puts its bytes."""
        ...

    def write(self, data: Bytes) -> None:
        """Write at `position`, and advance."""
        ...

    def skip(self, size_bytes: int) -> None:
        """Advance over bytes that `write_at` brings later."""
        ...

    def write_at(self, data: Bytes, offset: int) -> None:
        """Write at `offset`; `position` stays."""
        ...

    def commit(self, fsync: bool) -> None:
        """Give the file its name, with `fsync` after its bytes are on the device."""
        ...

    def discard(self) -> None:
        """Remove what was written; harmless after `commit`."""
        ...


class Storage(Protocol):
    """A backend. It holds no open file, so it may be shared by threads."""

    alignment: int
    """Reads want address, offset and length to be multiples of this many bytes."""
    reads_nothing: bool
    """No file is ever touched: what is measured is the reader itself."""

    def open(self, path: str) -> Reader:
        """Open a file for reading. Raises OSError, or UserError where the file system can't serve this backend."""
        ...

    def create(self, path: str) -> Writer:
        """Begin a file that `path` will name. Raises OSError."""
        ...
