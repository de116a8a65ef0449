"""GET requests to an object store at a constant depth: a connection each, one thread polls all, as training reads."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.errors import DlemuError, UserError
from datagen.storage.s3 import SCHEME, ObjectReader, Storage
from datagen.storage.storage_base import StorageSpec
from dlemu.jobs.probe.result import CellSpec, Requests

OBJECT_BYTES = 64 << 20
"""Size of each object that is created for the probe."""
_WRITE_BYTES = 8 << 20  # random bytes held in memory; the object repeats them, since only reads are measured


def run_gets(cell: CellSpec, spec: StorageSpec, objects: Sequence[str], seconds: float) -> Requests:
    """Keep `depth` requests in flight for `seconds`; raises DlemuError if one fails and its retries do, too."""
    began_seconds = time.process_time()
    storage = Storage(spec)
    answers: list[tuple[int, int, int]] = []

    def answered(first_byte_ns: int, last_byte_ns: int) -> None:
        answers.append((time.monotonic_ns(), last_byte_ns, first_byte_ns))

    readers = [_opened(storage, path) for path in objects]
    storage.counts.on_answer = answered
    depth, size_bytes = cell.depth, cell.size_bytes
    buffer = AlignedBuffer(depth * size_bytes)
    memory = buffer.view(depth * size_bytes)
    buffers = itertools.cycle(memory[start : start + size_bytes] for start in range(0, len(memory), size_bytes))
    deadline = time.monotonic() + seconds
    requests = (
        reader.requests(next(buffers), offset)[0]
        for reader, offset in itertools.takewhile(lambda _: time.monotonic() < deadline, _ranges(cell, readers))
    )
    readers[0].client.request_all(requests, depth)
    ends, lasts, firsts = np.array(answers, np.int64).reshape(-1, 3).T
    return Requests(ends, lasts, time.process_time() - began_seconds, firsts, storage.counts["failed"])


def _opened(storage: Storage, path: str) -> ObjectReader:
    try:
        return storage.open(path)
    except FileNotFoundError:
        raise DlemuError(f"{path} no longer exists: do not delete objects while they are read") from None


def _ranges(cell: CellSpec, readers: list[ObjectReader]) -> Iterator[tuple[ObjectReader, int]]:
    """Yield the object and the offset of each request, endlessly."""
    slots = [reader.size_bytes // cell.size_bytes for reader in readers]
    firsts = np.concatenate([[0], np.cumsum(slots)])
    random = np.random.default_rng()
    for number in itertools.count():
        slot = int(random.integers(firsts[-1])) if cell.random else number % int(firsts[-1])
        index = int(np.searchsorted(firsts, slot, side="right")) - 1
        yield readers[index], (slot - int(firsts[index])) * cell.size_bytes


@contextlib.contextmanager
def objects_to_read(spec: StorageSpec, target: str, total_bytes: int, min_bytes: int) -> Iterator[tuple[str, ...]]:
    """Context: yield the objects to read: `target` or ones of `min_bytes` or more created below it, removed at exit."""
    storage = Storage(spec)
    storage.preflight(target)
    if target.removeprefix(SCHEME).rstrip("/").partition("/")[2]:
        with contextlib.suppress(FileNotFoundError):
            size_bytes = storage.size_bytes(target)
            if size_bytes < min_bytes:
                raise UserError(f"{target} has {size_bytes} bytes: wanted at least {min_bytes}, the largest request")
            yield (target,)
            return
    folder = f"{target.rstrip('/')}/dlemu-probe-{os.getpid()}-{os.urandom(3).hex()}"
    made: list[str] = []
    try:
        object_bytes = max(min_bytes, min(OBJECT_BYTES, total_bytes))
        for number in range(max(1, total_bytes // object_bytes)):
            made.append(f"{folder}/{number:04}")
            _make(storage, made[-1], object_bytes)
        yield tuple(made)
    except BaseException as failure:  # the one to report, whatever the server says to the removal
        try:
            _remove(storage, made)
        except (OSError, DlemuError):
            if isinstance(failure, DlemuError):
                failure.args = (f"{failure}; objects made below {folder}/, if any, are left",)
        raise
    _remove(storage, made)


def _remove(storage: Storage, paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            storage.remove(path)


def _make(storage: Storage, path: str, size_bytes: int) -> None:
    writer = storage.create(path)
    try:
        block = os.urandom(min(_WRITE_BYTES, size_bytes))
        for start in range(0, size_bytes, len(block)):
            writer.write(memoryview(block)[: size_bytes - start])
        writer.commit()
    except BaseException:
        writer.discard()
        raise
