"""Threads that move blocks: what is read is what was written, damage is found, and a storage that fails is named."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datagen import owned
from datagen.bulk_content import BulkContent
from datagen.errors import DlemuError, SpaceError, UserError
from datagen.storage import memory, posix
from datagen.storage.storage_base import StorageBase, StorageSpec
from dlemu.contrib.kvcache.mover import Batch, Blocks, Mover, Operation
from dlemu.contrib.kvcache.settings import KvSettings

KV = KvSettings(tp=2, threads=3, transfer_size=8192)
SHARD = 3 * 4096
LATE_NS = 60 * 10**9


def blocks_on(storage: StorageBase, folder: str, kv: KvSettings = KV) -> Blocks:
    return Blocks(storage, folder, BulkContent(7), 3, kv, [SHARD] * 50)


def done(moves: Mover, *batches: Batch) -> list[Batch]:
    for batch in batches:
        moves.submit(batch)
    until_ns = time.monotonic_ns() + LATE_NS
    return [done for _ in batches if (done := moves.wait(until_ns)) is not None]


@pytest.fixture(params=[False, True])
def blocks(request: pytest.FixtureRequest, tmp_path: Path) -> Blocks:
    spec = StorageSpec(direct=request.param, direct_writes=request.param)
    return blocks_on(posix.Storage(spec), str(tmp_path))


def test_blocks_are_written_read_removed_and_written_again(blocks: Blocks, tmp_path: Path) -> None:
    with closing(Mover(blocks, seconds=60)) as moves:
        (wrote,) = done(moves, Batch(Operation.WRITE, 5, (0, 1, 2)))
        assert (wrote.owner, wrote.left) == (5, 0)
        assert wrote.call_ns > 0
        assert all(map(moves.is_written, (0, 1, 2)))
        assert not moves.is_written(3)
        done(moves, Batch(Operation.READ, 6, (2, 0)), Batch(Operation.READ, 7, (1,)))
        moves.submit(Batch(Operation.REMOVE, -1, (1,)))
        done(moves, Batch(Operation.READ, 6, (2,)), Batch(Operation.WRITE, 8, (3,)), Batch(Operation.READ, 6, (0,)))
        done(moves, Batch(Operation.READ, 6, (3,)))
    sizes = [path.stat().st_size for path in tmp_path.iterdir() if path.name != owned.MARKER]
    assert sum(sizes) == 3 * KV.tp * SHARD


@pytest.mark.parametrize("way", ["changed", "swapped", "short"])
def test_what_is_not_what_was_written_is_found(way: str) -> None:
    storage = memory.Storage()
    blocks = blocks_on(storage, "kv", replace(KV, verify=way == "changed"))
    with closing(Mover(blocks, seconds=60)) as moves:
        done(moves, Batch(Operation.WRITE, 0, (0, 1)))
        path, other = blocks.path(1), blocks.path(KV.tp)
        data = bytearray(storage.files[path])
        data[5000] ^= 1
        storage.files[path] = {"changed": bytes(data), "swapped": storage.files[other], "short": bytes(data[:8000])}[
            way
        ]
        said = {"changed": "byte 5000 is not", "swapped": "the stamp of shard", "short": "it ends at 8000"}[way]
        with pytest.raises(DlemuError, match=f"{path} is not what was written there: .*{said}"):
            done(moves, Batch(Operation.READ, 0, (0,)))


class Gate:
    """Blocks that are moved when somebody opens the gate, and the order in which they are."""

    settings, sizes = replace(KV, threads=1, folder="kv.folder"), [SHARD] * 50

    def __init__(self, error: OSError | None = None) -> None:
        self.open, self.order, self.error = threading.Event(), list[tuple[str, int]](), error

    def move(self, way: str, number: int) -> int:
        self.order.append((way, number))
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        return 1

    def write(self, shard: int, buffer: memoryview) -> int:
        return self.move("write", shard // KV.tp)

    def read(self, shard: int, buffer: memoryview) -> int:
        return self.move("read", shard // KV.tp)

    def remove(self, shard: int, buffer: memoryview) -> int:
        return self.move("remove", shard // KV.tp)


@contextmanager
def gated(gate: Any, seconds: float = 60.0) -> Iterator[Mover]:
    moves = Mover(gate, seconds=seconds)
    try:
        yield moves
    finally:
        gate.open.set()
        moves.close()


def test_reads_go_first_and_removing_last() -> None:
    gate = Gate()
    with gated(gate) as moves:
        moves.submit(Batch(Operation.WRITE, 0, (1,)))
        while not gate.order:
            time.sleep(0.001)
        moves.submit(Batch(Operation.REMOVE, 0, (4,)))
        moves.submit(Batch(Operation.WRITE, 0, (2,)))
        moves.submit(Batch(Operation.READ, 0, (3,)))
        gate.open.set()
        for _ in range(3):
            assert moves.wait(time.monotonic_ns() + LATE_NS) is not None
        deadline = time.monotonic() + 60
        while len(gate.order) < 8 and time.monotonic() < deadline:
            time.sleep(0.001)
    asked = ["write", "read", "read", "write", "write", "write", "remove", "remove"]
    assert [way for way, _ in gate.order] == asked, "what is under way ends first"


def test_a_storage_that_fails_or_hangs_is_named() -> None:
    gate = Gate(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/mnt/kv/1"))
    gate.open.set()
    with (
        gated(gate) as moves,
        pytest.raises(SpaceError, match=r"No space left .*, in kv.folder: .* kv.capacity_gb"),
    ):
        done(moves, Batch(Operation.WRITE, 0, (1,)))
    gate = Gate(OSError(errno.EIO, os.strerror(errno.EIO), "/mnt/kv/1"))
    gate.open.set()
    with gated(gate) as moves, pytest.raises(UserError, match=r"could not be moved: Input/output error \(/mnt/kv/1\)"):
        done(moves, Batch(Operation.READ, 0, (1,)))
    with gated(Gate(), seconds=0.2) as moves, pytest.raises(DlemuError, match="completed no block for"):
        done(moves, Batch(Operation.READ, 0, (1,)))
