"""The accelerator's timeline: waits, computing and meeting add up; a run that is to end does so on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.loop import STOP_NS, StepLoop, Stop
from dlemu.jobs.training.steplog import StepLog, StepRows
from dlemu.machine.clock import FakeClock
from dlemu.metrics.au import au_dlio_percents, au_percent, kept_rows
from dlemu.runner.run_folder import StopFile, request_stop
from tests.emulator.fakes import ScriptedComm, ScriptedQueue, sleeping, steps_of

C = 100


def run(
    ready_ns: list[int],
    others_end_ns: Sequence[int] = (),
    *,
    oversleep_ns: int = 0,
    latency_ns: int = 0,
    compute_ns: Sequence[int] = (),
    free_ns: int = 0,
    stop: Stop | None = None,
) -> StepRows:
    """Run steps whose batches are ready, and which the other rank ends, at these times."""
    steps, clock = len(ready_ns), FakeClock(free_ns, oversleep_ns)
    log, comm = StepLog(steps), ScriptedComm(others_end_ns or [0] * steps, clock, latency_ns)
    loop = StepLoop(accelerator=sleeping(clock), comm=comm, clock=clock, log=log, stop=stop)
    stopped = loop.run(steps_of(compute_ns or [C] * steps), free_ns, ScriptedQueue(ready_ns, clock))
    assert stopped == (len(log.rows) < steps)
    return log.rows


def test_batches_in_time_cost_nothing() -> None:
    rows = run([0, 50, 150, 250])
    assert rows["wait_ns"].tolist() == [0, 0, 0, 0]
    assert au_percent(rows) == 100.0


def test_a_late_batch_is_waited_for_from_the_moment_the_step_before_was_over() -> None:
    rows = run([0, 130, 150, 400])
    assert rows["wait_ns"].tolist() == [0, 30, 0, 70]
    assert rows["free_ns"].tolist() == [0, 100, 230, 330]


def test_the_slowest_rank_is_waited_for_and_the_time_is_sync() -> None:
    rows = run([0, 0, 0], [140, 150, 0])
    assert rows["sync_ns"].tolist() == [40, 0, 0]
    assert rows["free_ns"].tolist() == [0, 140, 240]


def test_a_late_host_is_neither_credited_nor_charged_while_batches_are_in_time() -> None:
    calm, busy = run([0, 50, 150, 250]), run([0, 50, 150, 250], oversleep_ns=60, latency_ns=30)
    for column in ("wait_ns", "compute_ns", "sync_ns", "free_ns"):
        assert calm[column].tolist() == busy[column].tolist()
    assert (busy["slept_ns"] > calm["slept_ns"]).any()


def test_the_trainers_own_computing_is_within_the_step_and_makes_it_longer_only_where_it_takes_longer() -> None:
    """It is never credited as computation of the accelerator."""
    clock, log = FakeClock(0), StepLog(3)
    comm = ScriptedComm([0] * 3, clock, 0)

    def burn(seconds: float) -> None:
        clock.sleep_until(clock.now_ns() + round(seconds * 1e9))

    loop = StepLoop(accelerator=sleeping(clock), comm=comm, clock=clock, log=log, burn=burn)
    cpu_seconds = np.array([40e-9, 160e-9, 100e-9])
    loop.run(steps_of([C] * 3, cpu_seconds=cpu_seconds), 0, ScriptedQueue([0, 0, 0], clock))
    assert log.rows["compute_ns"].tolist() == [C, C, C]
    assert log.rows["sync_ns"].tolist() == [0, 60, 0]
    assert log.rows["free_ns"].tolist() == [0, 100, 260]


@pytest.mark.parametrize(("compute_ns", "ranks", "times"), [(C, 1, 3), (0, 2, 3), (C, 2, 3), (0, 1, 0)])
def test_the_next_batch_is_read_ahead_while_the_trainer_computes_or_waits_for_others(
    compute_ns: int, ranks: int, times: int
) -> None:
    clock = FakeClock(0)
    comm, batches = ScriptedComm([0] * 3, clock, 0), ScriptedQueue([0, 0, 0], clock)
    comm.size = ranks
    loop = StepLoop(accelerator=sleeping(clock), comm=comm, clock=clock, log=StepLog(3))
    loop.run(steps_of([compute_ns] * 3), 0, batches)
    assert batches.read_ahead_times == times


def test_over_sleeping_raises_no_au() -> None:
    """DLIO credits measured sleep: a busy host looks better there, never here."""
    ready = [0, 190, 390, 590]
    rows = run(ready, oversleep_ns=40)
    assert au_percent(kept_rows(rows, 1, 0)) == au_percent(kept_rows(run(ready), 1, 0))
    assert au_dlio_percents(rows)[0][0] > au_dlio_percents(run(ready))[0][0]


@given(
    ready=st.lists(st.integers(0, 5000), min_size=1, max_size=30),
    others=st.lists(st.integers(0, 6000), min_size=30, max_size=30),
    computes=st.lists(st.integers(0, 400), min_size=30, max_size=30),
    oversleep=st.integers(0, 200),
    latency=st.integers(0, 50),
)
def test_the_columns_add_up_to_the_timeline_exactly(
    ready: list[int], others: list[int], computes: list[int], oversleep: int, latency: int
) -> None:
    computes = computes[: len(ready)]
    host: dict[str, Any] = {"oversleep_ns": oversleep, "latency_ns": latency}
    rows = run(sorted(ready), others, compute_ns=computes, free_ns=17, **host)
    spent = rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"]
    assert (rows["free_ns"][1:] == (rows["free_ns"] + spent)[:-1]).all()
    assert rows["free_ns"][0] == 17
    assert min(rows["wait_ns"].min(), rows["sync_ns"].min()) >= 0
    assert rows["compute_ns"].tolist() == computes


def test_who_stops_still_learns_when_the_slowest_was_done() -> None:
    answers = iter([False, True])
    rows = run([0] * 4, [0, 250, 250], stop=lambda: next(answers))
    assert rows["sync_ns"].tolist() == [0, 50]


def test_the_others_end_after_the_same_step() -> None:
    rows = run([0] * 4, [0, 150 + STOP_NS, 150])
    assert rows["step"].tolist() == [1, 2]
    assert rows["sync_ns"].tolist() == [0, 0]


def test_a_file_is_the_word_to_stop(tmp_path: Path) -> None:
    assert not StopFile(str(tmp_path))()
    request_stop(str(tmp_path))
    assert StopFile(str(tmp_path))()
    request_stop(str(tmp_path / "gone"))
