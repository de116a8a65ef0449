"""Reading a rank's files of one checkpoint: with several threads, or with the access pattern of a framework."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.storage.storage_base import Reader, StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.io_rows import FileTimings
from dlemu.checkpoints.write_files import Done, StartedPool
from dlemu.config.schema import Checkpoint
from dlemu.machine.thread_accounting import ThreadAccounting

_ALIGNMENT = 4096  # O_DIRECT: multiples of any device's logical block
_MAX_READ_BYTES = 32 << 20
"""Maximum bytes of one read call. A framework's larger reads (a tensor, 128 MiB) become several, into one buffer.

The kernel splits both into the same device requests, and a rank needs no memory of a tensor's size.
"""
_DIRECTORY_BYTES = 4096
"""Bytes at the end of a zip file that torch.load reads first: its directory."""


def check_is_file(storage: StorageBase, path: str) -> None:
    """Raise OSError if the path is a pipe or a device, which could block forever when opened."""
    if storage.local_path(path) is not None:  # object stores have neither: save them the request
        storage.size_bytes(path)


@dataclass(frozen=True, kw_only=True)
class ReadPattern:
    """How the threads of a rank read a file."""

    threads: int
    piece_bytes: int
    """Maximum bytes per read call."""
    by_tensor: bool = False
    """Read the end of the file first, then tensor by tensor."""
    own_parts: bool = False
    """Each thread reads its own part of the file; else each takes the next piece."""
    reads_ahead: bool = True
    """The kernel may read ahead."""


def read_pattern(settings: Checkpoint) -> ReadPattern:
    """Return the read pattern of `checkpoint.read_as`.

    `torch_load`: like PyTorch's torch.load of a zip file, one thread reads its directory, then one tensor after
    another. `mlperf_v3`: like MLPerf Storage v3.0, each of 4 threads reads a quarter of the file, without kernel
    read-ahead (POSIX_FADV_RANDOM).
    """
    if settings.read_as == "torch_load":
        return ReadPattern(threads=1, piece_bytes=_MAX_READ_BYTES, by_tensor=True)
    if settings.read_as == "mlperf_v3":
        return ReadPattern(threads=4, piece_bytes=_MAX_READ_BYTES, own_parts=True, reads_ahead=False)
    return ReadPattern(threads=settings.readers, piece_bytes=settings.transfer_size)


@dataclass(frozen=True, kw_only=True)
class FileToRead:
    """A file of a checkpoint to read."""

    path: str
    content: FileContent
    checked: bool
    """`content` is what was written: its first stamp is checked, and with `checkpoint.verify` every byte."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.content.layout.size_bytes


class CheckpointReader:
    """Reads files one after another, each with several threads, into buffers that are reused; `close` ends these."""

    def __init__(self, storage: StorageBase, pattern: ReadPattern, *, verify: bool) -> None:
        self._storage, self._pattern, self._verify = storage, pattern, verify
        self._pool = StartedPool(pattern.threads, "checkpoint-reader")
        self._accounting = ThreadAccounting()
        piece_bytes = -(-pattern.piece_bytes // _ALIGNMENT) * _ALIGNMENT
        whole = AlignedBuffer(pattern.threads * piece_bytes)  # one allocation is large enough for huge pages
        whole.take_pages()
        view = whole.view(pattern.threads * piece_bytes)
        self._buffers = [view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes)]
        self._scratch = [np.empty(pattern.piece_bytes, np.uint8) if verify else None for _ in range(pattern.threads)]

    def read(self, files: Sequence[FileToRead], done: Done) -> None:
        """Read all files, and call `done` after each. Raises UserError for a missing or wrong file."""
        for number, file in enumerate(files):
            done(number, self._read(file))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _read(self, file: FileToRead) -> dict[str, int]:
        pattern = self._pattern
        try:
            check_is_file(self._storage, file.path)
        except OSError as error:
            raise _unreadable(file, error) from error
        timings = FileTimings(pattern.threads)
        try:
            reader = (self._storage.open if pattern.reads_ahead else self._storage.open_unread_ahead)(file.path)
        except OSError as error:
            raise _unreadable(file, error) from error
        try:
            _check_size(file, reader)
            reads = _reads_by_thread(file, pattern)
            stop = threading.Event()
            self._pool.run(lambda thread: self._move(file, reader, reads[thread], thread, timings, stop), len(reads))
            moved_ns = time.monotonic_ns()
        except OSError as error:
            raise _unreadable(file, error) from error
        finally:
            reader.close()
        return timings.read(moved_ns)

    def _move(
        self,
        file: FileToRead,
        reader: Reader,
        pieces: Iterator[tuple[int, int]],
        thread: int,
        timings: FileTimings,
        stop: threading.Event,
    ) -> None:
        try:
            with timings.mover(self._accounting):
                for offset, size_bytes in pieces:
                    if stop.is_set():
                        return
                    self._read_piece(file, reader, offset, size_bytes, thread, timings)
        except BaseException:
            stop.set()
            raise

    def _read_piece(
        self, file: FileToRead, reader: Reader, offset: int, size_bytes: int, thread: int, timings: FileTimings
    ) -> None:
        whole = -(-size_bytes // self._storage.alignment) * self._storage.alignment
        buffer = self._buffers[thread][:whole]
        began_ns = time.monotonic_ns()
        got = min(reader.read_into(buffer, offset), size_bytes)
        timings.add(began_ns, got)
        if got < size_bytes:
            raise UserError(
                f"{file.path} ended at byte {offset + got} while it was read, wanted {file.size_bytes}: it was "
                "truncated meanwhile; write the checkpoint again"
            )
        if file.checked:
            self._check(file, buffer[:got], offset, thread)

    def _check(self, file: FileToRead, data: memoryview, offset: int, thread: int) -> None:
        scratch = self._scratch[thread]
        if scratch is not None:
            problem = file.content.difference(data, offset, scratch)
        elif offset == 0 or self._pattern.by_tensor:  # the first read by tensor is the end of the file
            before_block = -offset % _ALIGNMENT  # a tensor begins anywhere
            problem = file.content.stamp_problem(data[before_block:], offset + before_block)
        else:
            return
        if problem:
            raise UserError(f"{file.path} is not the file that was written: {problem}; write the checkpoint again")


def _reads_by_thread(file: FileToRead, pattern: ReadPattern) -> list[Iterator[tuple[int, int]]]:
    """Return for each thread an iterator of the reads (offset, bytes) it does: in its own part, or the next of all.

    A small file gets fewer threads, so that none is woken without a piece to read.
    """
    if pattern.own_parts:
        each = max(1, -(-file.size_bytes // (pattern.threads * _ALIGNMENT))) * _ALIGNMENT
        starts = range(0, max(file.size_bytes, 1), each)
        return [_pieces(start, min(file.size_bytes, start + each), pattern.piece_bytes) for start in starts]
    if pattern.by_tensor:
        shared = _by_tensor(file, pattern.piece_bytes)
    else:
        shared = _pieces(0, file.size_bytes, pattern.piece_bytes)
    lock, pieces = threading.Lock(), -(-file.size_bytes // pattern.piece_bytes)

    def following() -> tuple[int, int] | None:
        with lock:
            return next(shared, None)

    return [iter(following, None) for _ in range(max(1, min(pattern.threads, pieces)))]


def _pieces(begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    return ((offset, min(piece_bytes, end - offset)) for offset in range(begin, end, piece_bytes))


def _by_tensor(file: FileToRead, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the reads of torch.load: the end of the file, where a zip has its directory, then its tensors."""
    layout = file.content.layout
    tail = max(0, layout.size_bytes - _DIRECTORY_BYTES)
    directory = [(tail, layout.size_bytes - tail)] if layout.literals else []
    tensors = (_pieces(at, at + tensor.bytes, piece_bytes) for at, tensor in layout.tensors)
    return chain(directory, chain.from_iterable(tensors))


def _check_size(file: FileToRead, reader: Reader) -> None:
    wanted = file.size_bytes
    if reader.size_bytes == wanted:
        return
    what = "is truncated" if reader.size_bytes < wanted else "is too long: it is of another model or format"
    raise UserError(
        f"{file.path} {what}: it has {reader.size_bytes} bytes, wanted {wanted}; write the checkpoint again"
    )


def _unreadable(file: FileToRead, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"{file.path} is missing: the checkpoint is incomplete, or of another model, format or number of ranks; "
            "write it again"
        )
    return UserError(f"{file.path} can't be read: {error.strerror or error}")
