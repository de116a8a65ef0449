"""Reads a rank's files of one checkpoint, with several threads or with the access pattern of a framework."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from datagen.buffers import round_up
from datagen.errors import UserError
from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.movers import Columns, Movers, OnFile, split_buffer
from dlemu.config.schema import Checkpoint

_ALIGNMENT = 4096  # O_DIRECT: multiples of any device's logical block
_MAX_READ_BYTES = 32 << 20  # larger reads of a framework are split to save memory: the device's requests are the same
_DIRECTORY_BYTES = 4096  # at the end of a zip file, with the zip's directory: torch.load reads them first
_Reads = Iterator[tuple[int, int]]  # (offset, bytes) of each read call


def check_is_file(storage: StorageBase, path: str) -> None:
    """Raise OSError if the path is a pipe or a device, whose opening could block forever."""
    if storage.local_path(path) is not None:  # object stores have none: save the request
        storage.size_bytes(path)


@dataclass(frozen=True)
class ReadPattern:
    """How the threads of a rank read a file."""

    read_as: Literal["fast", "torch_load", "mlperf_v3"]
    threads: int
    piece_bytes: int
    """Maximum bytes per read call."""

    @property
    def reads_ahead(self) -> bool:
        """Whether the kernel may read ahead."""
        return self.read_as != "mlperf_v3"


def read_pattern(settings: Checkpoint) -> ReadPattern:
    """Return the read pattern of `checkpoint.read_as`.

    `torch_load`: one thread reads the zip's directory, then one tensor after another. `mlperf_v3`: 4 threads read a
    quarter of the file each, without kernel read-ahead (POSIX_FADV_RANDOM), as in MLPerf Storage v3.0.
    """
    if settings.read_as == "fast":
        return ReadPattern("fast", settings.readers, settings.transfer_size)
    return ReadPattern(settings.read_as, 1 if settings.read_as == "torch_load" else 4, _MAX_READ_BYTES)


class CheckpointReader:
    """Reads one file after another, each with several threads; the buffers are reused."""

    def __init__(self, storage: StorageBase, pattern: ReadPattern, *, verify: bool) -> None:
        self._storage, self._pattern = storage, pattern
        self._movers = Movers(pattern.threads, "checkpoint-reader")
        self._buffers = split_buffer(pattern.threads, round_up(pattern.piece_bytes, _ALIGNMENT))
        self._scratch = [np.empty(pattern.piece_bytes, np.uint8) if verify else None for _ in range(pattern.threads)]

    def read(self, files: Sequence[FileContent], on_file: OnFile, *, content_known: bool) -> None:
        """Read all files, and call `on_file` after each. Raises UserError for a missing or wrong file.

        `content_known`: dlemu wrote the files. The first stamp of each is checked, and with `verify` every byte.
        """
        for number, file in enumerate(files):
            try:
                on_file(number, self._read(file, content_known=content_known))
            except FileNotFoundError as error:
                raise UserError(
                    f"{file.path} is missing: the checkpoint is incomplete, or of another model, format or number of "
                    "ranks; write it again"
                ) from error
            except OSError as error:
                raise UserError(f"{file.path} can't be read: {error.strerror or error}") from error

    def close(self) -> None:
        self._movers.close()

    def _read(self, file: FileContent, *, content_known: bool) -> Columns:
        check_is_file(self._storage, file.path)
        reads = _reads_by_thread(file, self._pattern)
        failed = threading.Event()
        alignment = self._storage.alignment
        open_file = self._storage.open if self._pattern.reads_ahead else self._storage.open_unread_ahead
        with self._movers.measured() as columns, contextlib.closing(open_file(file.path)) as reader:

            def read_pieces(thread: int, counters: Columns) -> None:
                for offset, size_bytes in reads[thread]:
                    if failed.is_set():
                        return
                    buffer = self._buffers[thread][: size_bytes + -size_bytes % alignment]  # whole blocks
                    began_ns = time.monotonic_ns()
                    read_bytes = min(reader.read_into(buffer, offset), size_bytes)
                    counters["call_ns"] += time.monotonic_ns() - began_ns
                    counters["bytes"] += read_bytes
                    if read_bytes < size_bytes:
                        raise UserError(
                            f"{file.path} ended at byte {offset + read_bytes} while it was read, wanted "
                            f"{file.size_bytes}: it was truncated meanwhile; write the checkpoint again"
                        )
                    if content_known:
                        self._check(file, buffer[:read_bytes], offset, thread)

            if reader.size_bytes != file.size_bytes:
                is_short = reader.size_bytes < file.size_bytes
                problem = "is truncated" if is_short else "is too long: it is of another model or format"
                raise UserError(
                    f"{file.path} {problem}: it has {reader.size_bytes} bytes, wanted {file.size_bytes}; write the "
                    "checkpoint again"
                )
            self._movers.run(read_pieces, columns, failed.set, len(reads))
        return columns

    def _check(self, file: FileContent, data: memoryview, offset: int, thread: int) -> None:
        """Raise UserError if `data`, which a thread read at `offset`, is not what was written there."""
        scratch = self._scratch[thread]
        problem = ""
        if scratch is not None:
            problem = file.content_problem(data, offset, scratch)
        elif offset == 0 or self._pattern.read_as == "torch_load":  # torch_load may have no read at offset 0
            to_block = -offset % _ALIGNMENT  # stamps are at multiples of 4096, but a tensor begins anywhere
            problem = file.stamp_problem(data[to_block:], offset + to_block)
        if problem:
            raise UserError(f"{file.path} is not the file that was written: {problem}; write the checkpoint again")


def _reads_by_thread(file: FileContent, pattern: ReadPattern) -> list[_Reads]:
    """Return the reads of each thread; with `fast`, threads share one sequence, and small files get fewer threads."""
    size_bytes = file.size_bytes
    if pattern.read_as == "mlperf_v3":
        thread_bytes = round_up(max(1, size_bytes), pattern.threads * _ALIGNMENT) // pattern.threads  # whole blocks
        starts = range(0, max(size_bytes, 1), thread_bytes)
        return [_pieces(start, min(size_bytes, start + thread_bytes), pattern.piece_bytes) for start in starts]
    if pattern.read_as == "torch_load":  # the zip's directory at the end of the file, then the tensors
        start = max(0, size_bytes - _DIRECTORY_BYTES)
        directory = [(start, size_bytes - start)] if file.layout.literals else []
        tensors = (_pieces(at, at + tensor.bytes, pattern.piece_bytes) for at, tensor in file.layout.tensors)
        return [chain(directory, chain.from_iterable(tensors))]
    pieces = _pieces(0, size_bytes, pattern.piece_bytes)
    lock = threading.Lock()

    def next_piece() -> tuple[int, int] | None:
        with lock:
            return next(pieces, None)

    threads = max(1, min(pattern.threads, -(-size_bytes // pattern.piece_bytes)))
    return [iter(next_piece, None) for _ in range(threads)]


def _pieces(begin: int, end: int, piece_bytes: int) -> _Reads:
    return ((offset, min(piece_bytes, end - offset)) for offset in range(begin, end, piece_bytes))
