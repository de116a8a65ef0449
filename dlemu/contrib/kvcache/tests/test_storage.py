"""Blocks on storage: moved as they are asked for, damage and failures are named, and nothing is left of a run."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest

from datagen import owned
from datagen.content import BulkContent
from datagen.errors import DlemuError, SpaceError, UserError
from datagen.storage import memory, posix
from datagen.storage.storage_base import StorageBase, StorageSpec
from dlemu.contrib.kvcache import run_folder
from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.mover import Batch, Blocks, Mover, Operation
from dlemu.contrib.kvcache.settings import KvSettings
from tests.e2e.harness import until

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
        assert (wrote.owner, wrote.shards_left, wrote.call_ns > 0) == (5, 0, True)
        assert list(map(moves.is_written, (0, 1, 2, 3))) == [True, True, True, False]
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
        damaged = {"changed": bytes(data), "swapped": storage.files[other], "short": bytes(data[:8000])}
        storage.files[path] = damaged[way]
        said = {"changed": "byte 5000 is not", "swapped": "the stamp of shard", "short": "it ends at 8000"}[way]
        with pytest.raises(DlemuError, match=f"{path} is not what was written there: .*{said}"):
            done(moves, Batch(Operation.READ, 0, (0,)))


class Gate:
    """Blocks that are moved when somebody opens the gate, and the order in which they are."""

    settings, sizes = replace(KV, threads=1, folder="kv.folder"), [SHARD] * 50

    def __init__(self, error: OSError | None = None) -> None:
        self.open, self.order, self.error = threading.Event(), list[str](), error
        self.read, self.write, self.remove = (partial(self.move, way) for way in ("read", "write", "remove"))

    def move(self, way: str, shard: int, buffer: memoryview) -> int:
        self.order.append(way)
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        return 1


@contextmanager
def gated(gate: Any, seconds: float = 60.0) -> Iterator[Mover]:
    moves = Mover(gate, seconds=seconds)
    try:
        yield moves
    finally:
        gate.open.set()
        moves.close()


def test_reads_go_first_and_writes_last_which_need_the_room_of_what_is_removed() -> None:
    gate = Gate()
    with gated(gate) as moves:
        moves.submit(Batch(Operation.WRITE, 0, (1,)))
        until(lambda: gate.order, "the first write")
        for way, number in ((Operation.WRITE, 2), (Operation.REMOVE, 4), (Operation.READ, 3)):
            moves.submit(Batch(way, 0, (number,)))
        gate.open.set()
        until(lambda: len(gate.order) == 8, "all shards")
    asked = ["write", "read", "read", "remove", "remove", "write", "write", "write"]
    assert gate.order == asked, "what is under way ends first"


def test_a_storage_that_fails_or_hangs_is_named() -> None:
    for number, kind, says in (
        (errno.ENOSPC, SpaceError, r"No space left .*, in kv.folder: .* kv.capacity_gb"),
        (errno.EIO, UserError, r"could not be moved: Input/output error \(/mnt/kv/1\)"),
    ):
        gate = Gate(OSError(number, os.strerror(number), "/mnt/kv/1"))
        gate.open.set()
        with gated(gate) as moves, pytest.raises(kind, match=says):
            done(moves, Batch(Operation.WRITE, 0, (1,)))
    with gated(Gate(), seconds=0.2) as moves, pytest.raises(DlemuError, match="completed no block for"):
        done(moves, Batch(Operation.READ, 0, (1,)))


def test_objects_that_a_server_does_not_let_go_do_not_hide_the_failure_of_the_run() -> None:
    refusing: Any = SimpleNamespace(entries=Mock(side_effect=UserError("the credentials have expired")))
    assert run_folder.remove_objects(refusing, "kv/rank") is False


def job(folder: Path, seed: int = 7) -> Any:
    storage = SimpleNamespace(has_paths=True, resolved=lambda name: name)
    settings = KvSettings(folder=str(folder), odirect=False)
    return SimpleNamespace(seed=seed, workload=SimpleNamespace(storage=storage, section=lambda kind: settings))


@pytest.fixture
def kv(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def test_a_host_that_does_not_share_the_folder_makes_it_and_removes_what_a_killed_run_left(kv: Path) -> None:
    killed, one = job(kv, seed=6), job(kv)
    run_folder.create_run_folder(killed)
    for _ in range(2):  # then it is there, as on a host that shares it
        run_folder.create_run_folder(one)
    assert not os.path.exists(run_folder.run_folder(killed))
    with run_folder.created_rank_folder(one, 0, 3) as first, run_folder.created_rank_folder(one, 1, 3) as second:
        assert Path(first).parent == Path(second).parent == Path(run_folder.run_folder(one))
    run_folder.remove_run(one)
    run_folder.create_run_folder(job(kv, seed=8))
    run_folder.remove_run(job(kv, seed=8), failed=True)
    assert os.listdir(kv) == [owned.MARKER], "the next run there may use it, and it lists other runs"


@pytest.mark.parametrize("shared", [False, True])
def test_a_host_removes_what_a_failed_run_left_if_no_other_uses_it(shared: bool, kv: Path) -> None:
    one = job(kv)
    with patch("socket.gethostname", return_value="node-0" if shared else socket.gethostname()):
        run_folder.create_run_folder(one)
    owned.fresh_folder(run_folder.run_folder(one), "rank")
    with patch("os.path.isdir", lambda path: path != run_folder.run_folder(one)):  # as hosts see it that begin at once
        run_folder.create_run_folder(one)
    JOB.clean_up_elsewhere(one)
    assert os.path.isdir(run_folder.run_folder(one)) == shared


@pytest.mark.parametrize("calls", range(7))
def test_a_full_quota_is_no_room_and_leaves_the_users_folder_as_it_was(calls: int, kv: Path) -> None:
    """Whichever of the files and folders is the first that can't be made."""
    left, one, begun = calls, job(kv), False

    def limited(make: Any) -> Any:
        def called(path: Any, *words: Any, **more: Any) -> Any:
            nonlocal left
            left -= bool((make is mkdir or words[0] & os.O_CREAT) and not os.path.lexists(path))
            if left < 0:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
            return make(path, *words, **more)

        return called

    kv.mkdir()
    mkdir = os.mkdir
    with patch("os.open", limited(os.open)), patch("os.mkdir", limited(mkdir)):
        try:
            run_folder.create_run_folder(one)
            with run_folder.created_rank_folder(one, 0, 3):
                begun = True
        except SpaceError as error:
            assert os.strerror(errno.EDQUOT) in str(error)  # noqa: PT017  # only some counts of calls raise
    assert begun == (calls >= 6), "marker, run, its marker, rank, its marker, lock"
    assert run_folder.remove_run(one, failed=True)
    assert os.listdir(kv) == []


def test_blocks_that_a_failing_disk_keeps_are_left_and_go_with_the_next_run(kv: Path) -> None:
    one = job(kv)
    run_folder.create_run_folder(one)
    with patch("os.unlink", side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))):
        with run_folder.created_rank_folder(one, 0, 3) as folder:
            pass
        assert not run_folder.remove_run(one, failed=True), "the message says that blocks are left"
        assert os.path.isdir(folder)
    run_folder.create_run_folder(job(kv, seed=8))
    assert not os.path.exists(run_folder.run_folder(one))


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="which holds files that dlemu did not make, such as"):
        run_folder.create_run_folder(job(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]
