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

OBJECT_BYTES = 64 << 20  # size of each object that is created, unless requests are larger
_WRITE_BYTES = 8 << 20  # random bytes held in memory; the object repeats them, since only reads are measured


def run_gets(cell: CellSpec, spec: StorageSpec, objects: Sequence[str], seconds: float) -> Requests:
    """Keep `depth` requests in flight for `seconds`; raises DlemuError if a request and all its retries fail."""
    cpu_before = time.process_time()
    storage = Storage(spec)
    answers: list[tuple[int, int, int]] = []  # ns: completion by the clock, time to the last byte, to the first byte
    readers = [_opened(storage, path) for path in objects]
    storage.counts.on_answer = lambda first_ns, last_ns: answers.append((time.monotonic_ns(), last_ns, first_ns))
    depth, size_bytes = cell.depth, cell.size_bytes
    buffer = AlignedBuffer(depth * size_bytes)
    memory = buffer.view(depth * size_bytes)
    buffers = itertools.cycle(memory[start : start + size_bytes] for start in range(0, len(memory), size_bytes))
    deadline = time.monotonic() + seconds
    ranges = itertools.takewhile(lambda _: time.monotonic() < deadline, _ranges(cell, readers))
    requests = (reader.requests(next(buffers), offset)[0] for reader, offset in ranges)
    readers[0].client.request_all(requests, depth)
    end_ns, latency_ns, first_byte_ns = np.array(answers, np.int64).reshape(-1, 3).T
    return Requests(end_ns, latency_ns, time.process_time() - cpu_before, first_byte_ns, storage.counts["failed"])


def _opened(storage: Storage, path: str) -> ObjectReader:
    try:
        return storage.open(path)
    except FileNotFoundError:
        raise DlemuError(f"{path} no longer exists: do not delete objects while they are read") from None


def _ranges(cell: CellSpec, readers: list[ObjectReader]) -> Iterator[tuple[ObjectReader, int]]:
    """Yield the object and the offset of each request, endlessly.

    Slots of the request's size are numbered through all objects: of two objects of 3 slots, the second has 3 to 5.
    """
    slots = [reader.size_bytes // cell.size_bytes for reader in readers]
    first_slots = np.concatenate([[0], np.cumsum(slots)])
    total_slots = int(first_slots[-1])
    random = np.random.default_rng()
    for number in itertools.count():
        slot = int(random.integers(total_slots)) if cell.random else number % total_slots
        index = int(np.searchsorted(first_slots, slot, side="right")) - 1
        yield readers[index], (slot - int(first_slots[index])) * cell.size_bytes


@contextlib.contextmanager
def objects_to_read(spec: StorageSpec, target: str, total_bytes: int, min_bytes: int) -> Iterator[tuple[str, ...]]:
    """Context: yield `target`, or objects of `min_bytes` or more that are created below it, and removed at exit."""
    storage = Storage(spec)
    storage.preflight(target)
    if _is_object(storage, target, min_bytes):
        yield (target,)
        return
    folder = f"{target.rstrip('/')}/dlemu-probe-{os.getpid()}-{os.urandom(3).hex()}"
    created: list[str] = []
    try:
        object_bytes = max(min_bytes, min(OBJECT_BYTES, total_bytes))
        for number in range(max(1, total_bytes // object_bytes)):
            created.append(f"{folder}/{number:04}")
            _create(storage, created[-1], object_bytes)
        yield tuple(created)
    except BaseException as failure:  # the failure to report, whatever the server says to the removal
        try:
            _remove(storage, created)
        except (OSError, DlemuError):
            if isinstance(failure, DlemuError):
                failure.args = (f"{failure}; objects made below {folder}/, if any, are left",)
        raise
    _remove(storage, created)


def _is_object(storage: Storage, target: str, min_bytes: int) -> bool:
    """Return whether the target is an object, not a bucket or a prefix; raises UserError for a smaller object."""
    if not target.removeprefix(SCHEME).rstrip("/").partition("/")[2]:  # no key
        return False
    try:
        size_bytes = storage.size_bytes(target)
    except FileNotFoundError:
        return False
    if size_bytes < min_bytes:
        raise UserError(f"{target} has {size_bytes} bytes: wanted at least {min_bytes}, the largest request")
    return True


def _remove(storage: Storage, paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            storage.remove(path)


def _create(storage: Storage, path: str, size_bytes: int) -> None:
    writer = storage.create(path)
    try:
        block = os.urandom(min(_WRITE_BYTES, size_bytes))
        for start in range(0, size_bytes, len(block)):
            writer.write(memoryview(block)[: size_bytes - start])
        writer.commit()
    except BaseException:
        writer.discard()
        raise
