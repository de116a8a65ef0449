"""A checkpoint is the model's bytes, written by whom the settings name, under its name only when it is whole."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast
from unittest.mock import Mock

import pytest

from datagen.errors import SpaceError, UserError
from datagen.storage import memory, posix
from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.checkpoints.save import TrainingSaver
from dlemu.config.schema import Checkpoint, Model
from dlemu.machine.clock import FakeClock
from dlemu.ranks import Comm
from tests import faulty_storage
from tests.checkpoints.models import transformer
from tests.emulator.fakes import ScriptedComm

BYTES = (8 << 20) + 12_345


def comm_of(times_ns: list[int], clock: FakeClock, rank: int = 0) -> Comm:
    comm = ScriptedComm(times_ns, clock)
    comm.rank = rank
    return cast(Comm, comm)


def saver_of(
    storage: StorageBase, times_ns: list[int], folder: str = "saved", rank: int = 0, **settings: Any
) -> TrainingSaver:
    clock = FakeClock(100)
    checkpoint = Checkpoint(checkpoint_folder=folder, **settings)
    return TrainingSaver(checkpoint, Model(model_size_bytes=BYTES), storage, comm_of(times_ns, clock, rank), clock)


def save(storage: StorageBase, folder: str, rank: int = 0, **settings: Any) -> SavedCheckpoint:
    _, (saved,) = saver_of(storage, [150, 400], folder, rank, **settings).save(2, 3)
    return saved


@pytest.mark.parametrize(
    ("kind", "rank", "file"),
    [
        ("rank_zero", 0, "saved/epoch_2_block_3/rank_0.ckpt"),
        ("rank_zero", 1, None),
        ("all_ranks", 1, "saved/epoch_2_block_3/rank_1.ckpt"),
    ],
)
def test_who_writes_and_how_long_all_wait(kind: Literal["rank_zero", "all_ranks"], rank: int, file: str | None) -> None:
    storage = memory.Storage()
    saved = save(storage, "saved/", rank, type=kind)
    assert saved == SavedCheckpoint(epoch=2, block=3, bytes=BYTES if file else 0, started_ns=150, ended_ns=400)
    assert {path: len(data) for path, data in storage.files.items()} == ({file: BYTES} if file else {})


def test_checkpoints_of_other_blocks_and_epochs_have_other_bytes() -> None:
    """Else a storage that finds equal blocks would keep one of them."""
    storage = memory.Storage()
    saver = saver_of(storage, [1, 2] * 6)
    for epoch, block in ((1, 1), (1, 2), (2, 1), (1, 513), (3, 1), (1, 257)):
        saver.save(epoch, block)
    assert len(storage.files) == len({bytes(data) for data in storage.files.values()}) == 6


def test_one_of_an_earlier_run_makes_way_before_the_next_is_written(tmp_path: Path) -> None:
    save(posix.Storage(), str(tmp_path))
    (path,) = tmp_path.rglob("*.ckpt")
    seen = []

    class Watching(posix.Storage):
        def create(self, path: str) -> posix.FileWriter:
            seen.append(os.path.exists(path))
            return super().create(path)

    save(Watching(), str(tmp_path))
    assert seen == [False], "there may be no space for both"
    assert path.stat().st_size == BYTES


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.ENOSPC, SpaceError, r"the disk is full: checkpoint .*rank_0.ckpt needs \d+ bytes; free some space"),
        (errno.EDQUOT, SpaceError, "the quota is used up: checkpoint .*free some space"),
        (errno.EIO, UserError, "accessed: Input/output error; .*set checkpoint.checkpoint_folder"),
    ],
)
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_what_the_system_has_against_it_is_told_and_nothing_is_left(
    call: str, number: int, error: type[UserError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(error, match=message):
        save(posix.Storage(), str(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_training_goes_on_after_the_snapshot_and_the_next_one_waits_for_the_storage() -> None:
    storage = memory.Storage()
    # wanted; the snapshot is over; the second is wanted; the first is on the storage; the second's snapshot is over
    saver = saver_of(storage, [150, 400, 900, 950, 1200, 1300], asynchronous=True, snapshot_gb_per_second=1e9)
    settings, clock = saver.settings, cast(FakeClock, saver.clock)
    assert saver.save(1, 1) == (400, [])
    released_ns, (first,) = saver.save(1, 2)
    assert (first.started_ns, first.released_ns, first.ended_ns) == (150, 400, 950)
    assert released_ns == 1200
    assert first.stall_seconds == pytest.approx(250e-9)
    (second,) = saver.finish()
    assert (second.block, second.started_ns, second.released_ns) == (2, 900, 1200)
    assert saver.finish() == []
    assert [len(data) for data in storage.files.values()] == [BYTES, BYTES]
    slow = replace(saver, settings=replace(settings, snapshot_gb_per_second=1.0), comm=comm_of([2000, 0], clock))
    assert slow.save(2, 1)[0] == 2000 + BYTES, "a byte takes a nanosecond"
    slow.comm = comm_of([0], clock)
    slow.finish()
    clock.time_ns = 9000
    all_ranks = replace(slow, settings=replace(slow.settings, type="all_ranks"), comm=comm_of([9000, 0, 0], clock, 1))
    all_ranks.save(2, 2)
    assert clock.time_ns == 9000 + BYTES, "of the rank's own bytes"
    all_ranks.finish()


def test_a_disk_that_fills_while_training_goes_on_is_told_when_the_next_one_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = saver_of(posix.Storage(), [150, 400, 900], str(tmp_path / "saved"), asynchronous=True)
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    saver.save(1, 1)
    with pytest.raises(SpaceError, match="the disk is full"):
        saver.save(1, 2)


def test_a_model_of_layers_is_saved_as_its_files() -> None:
    storage, gather = memory.Storage(), Mock(return_value=[3, 4])
    saver = saver_of(storage, [150, 400], rank=1)
    cast(Any, saver.comm).gather = gather
    _, (saved,) = replace(saver, model=transformer(layers=2, zero_stage=3)).save(1, 1)
    assert list(storage.files) == [
        f"saved/epoch_1_block_1/zero_pp_rank_1_mp_rank_0_{kind}_states.pt" for kind in ("model", "optim")
    ]
    assert saved.bytes == 7, "each rank lays out its own files alone, and says how large they are"
    gather.assert_called_once_with(sum(map(len, storage.files.values())))


def test_each_call_that_fails_is_named_and_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    with faulty_storage.plan() as plan:
        save(faulty_storage.Storage(), str(tmp_path / "whole"))
    sites = [(call, at) for call, count in plan.calls.items() for at in range(1, count + 1)]
    assert {"folder", "create", "write", "sync", "rename"} <= set(plan.calls)
    for number, (call, at) in enumerate(sites):
        folder = str(tmp_path / str(number))
        with faulty_storage.plan(call, at, "ESTALE"), pytest.raises(UserError, match=rf"{folder}.*Stale file handle"):
            save(faulty_storage.Storage(), folder)
        assert [path for path in Path(folder).rglob("*") if path.is_file()] == []
