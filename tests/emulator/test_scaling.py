"""Whether more readers would have got more: asked only where it matters, answered by reading."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from datagen.inspection import inspect
from datagen.storage.posix import FileReader
from dlemu.config.schema import Metric, Reader
from dlemu.jobs.training import scaling
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.scaling import try_other_readers, worth_trying
from dlemu.jobs.training.steplog import StepRows
from dlemu.machine.clock import FakeClock
from tests.datasets import make_dataset
from tests.emulator.fakes import ScriptedComm
from tests.metrics.test_limit import late_steps
from tests.runs import make_job


class Alone(ScriptedComm):
    rank, size, local_rank, local_size = 0, 1, 0, 1

    def __init__(self) -> None:
        super().__init__(iter(lambda: 0, 1), FakeClock())


def small_reads(**changes: Any) -> StepRows:
    """Steps that one rank lost to reads of 4 KiB, one at a time."""
    every = late_steps(**changes)
    rows: StepRows = every[every["rank"] == 0].copy()
    rows["app_bytes"], rows["read_calls"] = 40960, 10
    return rows


def job_on(folder: Path, readers: int = 1, **changes: Any) -> TrainingJob:
    spec = make_dataset(folder, num_files_train=400, record_length_bytes=4_000, record_length_bytes_stdev=0)
    reader = Reader(batch_size=4, read_threads=readers, engine="fast")  # one read for a sample, which tests slow down
    changes = {"metric": Metric(scaling_seconds=0.5)} | changes
    job = make_job(ranks=1, steps=100, dataset=spec, reader=reader, **changes)
    return replace(job, dataset=inspect(spec))


def test_it_is_asked_of_runs_that_lost_to_few_reads_alone() -> None:
    job = make_job(ranks=1)
    assert worth_trying(job, small_reads()) == ("more", "fewer")
    assert worth_trying(replace(job, ranks=8), small_reads()) == ("fewer",), "8 ranks have reads enough under way"
    alone = make_job(ranks=1, reader=Reader(read_threads=1, batch_size=4))
    assert worth_trying(alone, small_reads()) == ("more",), "there are none fewer than one"
    own_calls = replace(job.workload.reader, engine="fast", transfer_size=4096)
    small_calls = make_job(ranks=1, reader=own_calls)
    assert worth_trying(small_calls, small_reads()) == ("more", "fewer", "larger")
    assert not worth_trying(make_job(ranks=1, metric=Metric(scaling_seconds=0)), small_reads())
    assert not worth_trying(make_job(ranks=1, metric=Metric(au=0.1)), small_reads()), "it passed"
    assert not worth_trying(job, small_reads(cpu_ms=90)), "the worker computed"
    assert not worth_trying(job, small_reads()[:0])
    rows, later = small_reads(), small_reads()
    later["epoch"], later["sync_ns"], later["wait_ns"] = 2, 2 * later["wait_ns"], 0
    assert worth_trying(job, np.concatenate([rows, later])), "what it lost to the others hides nothing"


def test_a_disk_gives_more_to_fewer_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head, which seeks for 30 ms whenever another thread reads than before."""
    job = job_on(tmp_path, readers=4, metric=Metric(scaling_seconds=1.0))
    head, last, plain = threading.Lock(), [0], FileReader.read_into

    def read(self: FileReader, buffer: memoryview, offset: int) -> int:
        with head:
            time.sleep(0.03 if last[0] != threading.get_ident() else 0.003)
            last[0] = threading.get_ident()
            return plain(self, buffer, offset)

    monkeypatch.setattr(FileReader, "read_into", read)
    tries = (try_other_readers(job, Alone(), small_reads()) for _ in range(3))  # other programs can spoil one
    found = next((one for one in tries if one and one.fewer_mb_per_second > 1.3 * one.same_mb_per_second), None)
    assert found is not None
    assert (found.readers, found.fewer_readers) == (4, 1)


@pytest.mark.parametrize(("channels", "least", "most"), [(64, 1.25, 8.0), (1, 0.3, 1.9)])
def test_a_drive_of_many_channels_gives_more_to_more_readers(
    channels: int, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_on(tmp_path, metric=Metric(scaling_seconds=1.0))
    free, plain = threading.Semaphore(channels), FileReader.read_into

    def read(self: FileReader, buffer: memoryview, offset: int) -> int:
        with free:
            time.sleep(0.025)  # long beside the lateness of a busy host, as the seconds are
            return plain(self, buffer, offset)

    monkeypatch.setattr(FileReader, "read_into", read)
    tries = (try_other_readers(job, Alone(), small_reads()) for _ in range(3))  # other programs can spoil one
    found = next((one for one in tries if one and least <= one.more_mb_per_second / one.mb_per_second <= most), None)
    assert found is not None
    assert (found.readers, found.more_readers) == (1, 4)


def test_of_large_batches_trials_read_a_few_samples_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(return_value=(1, 1.0))
    monkeypatch.setattr(scaling, "READ_BYTES", 9_000)
    monkeypatch.setattr(scaling, "_read", read)
    try_other_readers(job_on(tmp_path), Alone(), small_reads())
    assert {call.args[0].train_plan.batch_size for call in read.call_args_list} == {2}, "not 4, of 4000 bytes each"


def test_a_read_that_fails_ends_the_trial_and_not_the_run(tmp_path: Path) -> None:
    job = job_on(tmp_path)
    assert try_other_readers(job, Alone(), small_reads()) is not None
    for file in (tmp_path / "train").iterdir():
        file.write_bytes(b"")
    assert try_other_readers(job, Alone(), small_reads()) is None


class Ahead(Alone):
    """Rank 0 of two, which is ahead of the other one: that reads 1 MB/s."""

    size = local_size = 2

    def gather(self, value: Any) -> list[Any]:
        return [value, ("more",) if value == () else (1_000_000, 1.0)]


def test_a_rank_that_waited_for_the_others_does_not_decide_for_them(tmp_path: Path) -> None:
    job = job_on(tmp_path)
    ahead = small_reads()
    ahead["sync_ns"], ahead["wait_ns"] = ahead["wait_ns"], 0
    assert not worth_trying(job, ahead)
    assert try_other_readers(job, Alone(), ahead) is None
    found = try_other_readers(job, Ahead(), ahead)
    assert found is not None
    assert found.same_mb_per_second == found.more_mb_per_second == 2.0, "the trial's rate is not that of the one ahead"
