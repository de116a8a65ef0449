"""Reading a rank's files of one checkpoint, in the manner of a framework or as fast as it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.storage.storage_base import Reader, StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.io_rows import FileNotes
from dlemu.checkpoints.started_pool import StartedPool
from dlemu.checkpoints.write_files import MovedFile
from dlemu.comm.thread_accounting import ThreadAccounting, process_storage_bytes
from dlemu.config.schema import Checkpoint

_ALIGNMENT = 4096  # O_DIRECT: multiples of any device's logical block
_LONGEST_READ_BYTES = 32 << 20
"""Of one call: what a framework requests at once (a tensor, 128 MiB) is read by several, into the same memory again.

The kernel cuts both into the same requests; a rank then needs no memory of a tensor's size.
"""
_DIRECTORY_BYTES = 4096
"""What torch.load reads of the end of a zip file before anything else."""


def check_is_file(storage: StorageBase, path: str) -> None:
    """Raise OSError where a pipe or a device has come into a file's place: to open it may never end."""
    if storage.local_path(path) is not None:  # a bucket has neither, and would be asked for it
        storage.size_bytes(path)


@dataclass(frozen=True, kw_only=True)
class ReadManner:
    """How files are read."""

    threads: int
    piece_bytes: int
    by_tensor: bool = False
    """Each tensor for itself, from its first byte on, after the file's end."""
    own_parts: bool = False
    """Each thread has its own stretch of the file; else each takes the next piece."""
    reads_ahead: bool = True
    """The kernel may read ahead."""


def manner_of(settings: Checkpoint) -> ReadManner:
    """Return how `checkpoint.read_as` reads.

    `torch_load`: PyTorch's torch.load of a zip file reads its directory, then one tensor after another. `mlperf_v3`:
    MLPerf Storage v3.0 reads a quarter of the file by each of 4 threads and has the kernel not read ahead
    (POSIX_FADV_RANDOM).
    """
    if settings.read_as == "torch_load":
        return ReadManner(threads=1, piece_bytes=_LONGEST_READ_BYTES, by_tensor=True)
    if settings.read_as == "mlperf_v3":
        return ReadManner(threads=4, piece_bytes=_LONGEST_READ_BYTES, own_parts=True, reads_ahead=False)
    return ReadManner(threads=settings.readers, piece_bytes=settings.transfer_size)


@dataclass(frozen=True, kw_only=True)
class FileToRead:
    """A file of a checkpoint, or a stretch of one: bytes `begin` to `end`."""

    path: str
    content: FileContent
    begin: int
    end: int
    checked: bool
    """Its bytes are known: whose they are is looked at, and each of them with `checkpoint.verify`."""


class CheckpointReader:
    """Reads files, one after another, each by several threads into memory that is used again; `close` ends these."""

    def __init__(self, storage: StorageBase, manner: ReadManner, *, verify: bool) -> None:
        self._storage, self._manner, self._verify = storage, manner, verify
        self._pool = StartedPool(manner.threads, "checkpoint-reader")
        self._accounting = ThreadAccounting()
        piece_bytes = -(-manner.piece_bytes // _ALIGNMENT) * _ALIGNMENT
        whole = AlignedBuffer(manner.threads * piece_bytes)  # together they are large enough for huge pages
        whole.take_pages()
        view = whole.view(manner.threads * piece_bytes)
        self._buffers = [view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes)]
        self._scratch = [np.empty(manner.piece_bytes, np.uint8) if verify else None for _ in range(manner.threads)]

    def read(self, files: Sequence[FileToRead], done: Callable[[int, MovedFile], None]) -> None:
        """Read all files and say each when it was read; raises UserError that names a file which is not as written."""
        for number, file in enumerate(files):
            done(number, self._read(file))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _read(self, file: FileToRead) -> MovedFile:
        notes, manner = FileNotes(), self._manner
        try:
            check_is_file(self._storage, file.path)
        except OSError as error:
            raise _unreadable(file, error) from error
        storage_before = process_storage_bytes()
        cpu_ns, started_ns = time.process_time_ns(), time.monotonic_ns()
        try:
            reader = (self._storage.open if manner.reads_ahead else self._storage.open_unread_ahead)(file.path)
        except OSError as error:
            raise _unreadable(file, error) from error
        opened_ns = time.monotonic_ns()
        try:
            _check_size(file, reader)
            lanes = _lanes(file, manner)
            stop = threading.Event()
            self._pool.run(lambda lane: self._move(file, reader, lanes[lane], lane, notes, stop), len(lanes))
            moved_ns = time.monotonic_ns()
        except OSError as error:
            raise _unreadable(file, error) from error
        finally:
            reader.close()
        return MovedFile(
            bytes=sum(notes.sizes),
            started_ns=started_ns,
            opened_ns=opened_ns,
            moved_ns=moved_ns,
            synced_ns=moved_ns,
            ended_ns=time.monotonic_ns(),
            threads=manner.threads,
            cpu_ns=time.process_time_ns() - cpu_ns,
            content_cpu_ns=0,
            storage_bytes=process_storage_bytes() - storage_before,
            notes=notes,
        )

    def _move(
        self,
        file: FileToRead,
        reader: Reader,
        pieces: Iterator[tuple[int, int]],
        lane: int,
        notes: FileNotes,
        stop: threading.Event,
    ) -> None:
        try:
            with notes.mover(self._accounting):
                for offset, size_bytes in pieces:
                    if stop.is_set():
                        return
                    self._read_piece(file, reader, offset, size_bytes, lane, notes)
        except BaseException:
            stop.set()
            raise

    def _read_piece(
        self, file: FileToRead, reader: Reader, offset: int, size_bytes: int, lane: int, notes: FileNotes
    ) -> None:
        whole = -(-size_bytes // self._storage.alignment) * self._storage.alignment
        buffer = self._buffers[lane][:whole]
        began_ns = time.monotonic_ns()
        got = min(reader.read_into(buffer, offset), size_bytes)
        notes.add(began_ns, time.monotonic_ns(), got)
        if got < size_bytes:
            raise UserError(
                f"{file.path} ended at byte {offset + got} while it was read, wanted {file.end}: it was truncated "
                "meanwhile; write the checkpoint again"
            )
        if file.checked:
            self._check(file, buffer[:got], offset, lane)

    def _check(self, file: FileToRead, data: memoryview, offset: int, lane: int) -> None:
        scratch = self._scratch[lane]
        if scratch is not None:
            problem = file.content.difference(data, offset, scratch)
        elif offset == file.begin and offset % _ALIGNMENT == 0:
            problem = file.content.stamp_problem(data, offset)
        else:
            return
        if problem:
            raise UserError(f"{file.path} is not the file that was written: {problem}; write the checkpoint again")


def _lanes(file: FileToRead, manner: ReadManner) -> list[Iterator[tuple[int, int]]]:
    """Return the pieces (offset, bytes) that each thread reads: its own, or the next of all.

    No thread is woken for a file that has no piece for it.
    """
    if manner.own_parts:
        each = max(1, -(-(file.end - file.begin) // (manner.threads * _ALIGNMENT))) * _ALIGNMENT
        starts = range(file.begin, max(file.end, file.begin + 1), each)
        return [_pieces(start, min(file.end, start + each), manner.piece_bytes) for start in starts]
    if manner.by_tensor:
        shared = _by_tensor(file, manner.piece_bytes)
    else:
        shared = _pieces(file.begin, file.end, manner.piece_bytes)
    turns = _Turns(shared)
    pieces = -(-(file.end - file.begin) // manner.piece_bytes)
    return [iter(turns.next, None) for _ in range(max(1, min(manner.threads, pieces)))]


def _pieces(begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    return ((offset, min(piece_bytes, end - offset)) for offset in range(begin, end, piece_bytes))


def _by_tensor(file: FileToRead, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield what torch.load reads: the end of the file, where a zip has its directory, then every tensor."""
    layout = file.content.layout
    tail = max(0, layout.size_bytes - _DIRECTORY_BYTES)
    directory = [(tail, layout.size_bytes - tail)] if layout.literals else []
    tensors = (_pieces(at, at + tensor.bytes, piece_bytes) for at, tensor in layout.tensors)
    return chain(directory, chain.from_iterable(tensors))


class _Turns:
    """Hands the next piece to whichever thread is free."""

    def __init__(self, pieces: Iterator[tuple[int, int]]) -> None:
        self._pieces, self._lock = pieces, threading.Lock()

    def next(self) -> tuple[int, int] | None:
        with self._lock:
            return next(self._pieces, None)


def _check_size(file: FileToRead, reader: Reader) -> None:
    wanted = file.content.layout.size_bytes
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
