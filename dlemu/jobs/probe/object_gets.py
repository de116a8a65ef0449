"""GET requests to an object store, so many always in flight from one thread, by the client that training reads with.

Each requests a range of an object, as long as wanted, from any place of any object. There is one connection per
request in flight, and one thread polls them: datagen/storage/_s3_client.py.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.errors import DlemuError, UserError
from datagen.storage.s3 import SCHEME, ObjectReader, Storage
from datagen.storage.storage_base import StorageSpec
from dlemu.jobs.probe.kernel_aio import Requests

OBJECT_BYTES = 64 << 20
"""Of an object that is made to be read."""
_WRITE_BYTES = 8 << 20  # random bytes in memory at a time; the object repeats them, for only reads are measured


@dataclass(frozen=True, kw_only=True)
class GetStream:
    """What one job needs from a bucket."""

    storage: StorageSpec
    objects: tuple[str, ...]
    random: bool
    size_bytes: int
    """Of a request's range."""
    depth: int
    """Requests in flight."""
    seconds: float
    seed: int


def run_gets(stream: GetStream) -> Requests:
    """Keep `depth` requests in flight for `seconds`; raises DlemuError for one that failed again and again."""
    began_seconds = time.process_time()
    storage = Storage(stream.storage)
    answers: list[tuple[int, int, int]] = []

    def answered(first_byte_ns: int, last_byte_ns: int) -> None:
        answers.append((time.monotonic_ns(), last_byte_ns, first_byte_ns))

    readers = [_opened(storage, path) for path in stream.objects]
    storage.counts.on_answer = answered
    buffer = AlignedBuffer(stream.depth * stream.size_bytes)
    memory = buffer.view(stream.depth * stream.size_bytes)
    places = itertools.cycle(
        memory[start : start + stream.size_bytes] for start in range(0, len(memory), stream.size_bytes)
    )
    deadline = time.monotonic() + stream.seconds
    requests = (
        reader.requests(next(places), offset)[0][1]
        for reader, offset in itertools.takewhile(lambda _: time.monotonic() < deadline, _ranges(stream, readers))
    )
    readers[0].client.request_all(requests, stream.depth)
    ends, lasts, firsts = np.array(answers, np.int64).reshape(-1, 3).T
    return Requests(ends, lasts, time.process_time() - began_seconds, firsts, storage.counts["failed"])


def _opened(storage: Storage, path: str) -> ObjectReader:
    try:
        return storage.open(path)
    except FileNotFoundError:
        raise DlemuError(f"{path} no longer exists: do not delete objects while they are read") from None


def _ranges(stream: GetStream, readers: list[ObjectReader]) -> Iterator[tuple[ObjectReader, int]]:
    """Yield object and offset of one request after the other."""
    slots = [reader.size_bytes // stream.size_bytes for reader in readers]
    firsts = np.concatenate([[0], np.cumsum(slots)])
    random = np.random.default_rng(stream.seed)
    for number in itertools.count():
        slot = int(random.integers(firsts[-1])) if stream.random else number % int(firsts[-1])
        place = int(np.searchsorted(firsts, slot, side="right")) - 1
        yield readers[place], (slot - int(firsts[place])) * stream.size_bytes


@contextlib.contextmanager
def objects_to_read(spec: StorageSpec, target: str, total_bytes: int, least_bytes: int) -> Iterator[tuple[str, ...]]:
    """Give the objects to read: the target, where it is one; else some that are made below it, and removed.

    Each has `least_bytes` at least, for the largest request.

    Raises UserError where the server, the bucket or the credentials are wrong.
    """
    storage = Storage(spec)
    storage.preflight(target)
    if target.removeprefix(SCHEME).rstrip("/").partition("/")[2]:
        with contextlib.suppress(FileNotFoundError):
            size_bytes = storage.size_bytes(target)
            if size_bytes < least_bytes:
                raise UserError(f"{target} has {size_bytes} bytes: wanted at least {least_bytes}, the largest request")
            yield (target,)
            return
    folder = f"{target.rstrip('/')}/dlemu-probe-{os.getpid()}-{os.urandom(3).hex()}"
    made: list[str] = []
    try:
        each = max(least_bytes, min(OBJECT_BYTES, total_bytes))
        for number in range(max(1, total_bytes // each)):
            made.append(f"{folder}/{number:04}")
            _make(storage, made[-1], each)
        yield tuple(made)
    finally:
        for path in made:
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
