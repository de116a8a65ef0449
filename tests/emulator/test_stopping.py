"""A run that is asked to end does so on all ranks after the same step, and is written as the run that it became."""

from __future__ import annotations

from pathlib import Path

from dlemu.jobs.training.loop import STOP_NS, StepLoop
from dlemu.jobs.training.steplog import StepLog
from dlemu.machine.clock import FakeClock
from dlemu.runner.run_folder import StopFile, request_stop
from tests.emulator.fakes import ScriptedComm, ScriptedQueue, sleeping, steps_of
from tests.runs import cut, make_job

C = 100


def run(others_end_ns: list[int], stops: list[bool] | None = None) -> tuple[bool, StepLog]:
    clock, log = FakeClock(0, 0), StepLog(4)
    comm = ScriptedComm(others_end_ns, clock)
    answers = iter(stops or [])
    stop = (lambda: next(answers)) if stops else None
    loop = StepLoop(accelerator=sleeping(clock), comm=comm, clock=clock, log=log, stop=stop)
    return loop.run(steps_of([C] * 4), 0, ScriptedQueue([0] * 4, clock)), log


def test_who_stops_still_learns_when_the_slowest_was_done() -> None:
    stopped, log = run([0, 250, 250], [False, True])
    assert stopped
    assert log.rows["sync_ns"].tolist() == [0, 50]


def test_the_others_end_after_the_same_step() -> None:
    stopped, log = run([0, 150 + STOP_NS, 150])
    assert stopped
    assert log.rows["step"].tolist() == [1, 2]
    assert log.rows["sync_ns"].tolist() == [0, 0]


def test_the_file_is_the_word(tmp_path: Path) -> None:
    assert not StopFile(str(tmp_path))()
    request_stop(str(tmp_path))
    assert StopFile(str(tmp_path))()
    request_stop(str(tmp_path / "gone"))


def test_a_job_that_was_cut_plans_what_it_took() -> None:
    job = cut(make_job(epochs=3, steps=12), 15)
    assert [epoch.steps for epoch in job.schedule] == [12, 3]
