"""What rank 0 does for its progress line while the accelerator computes."""

from __future__ import annotations

import numpy as np
import pytest

from dlemu.cli.watching import watcher
from dlemu.comm.local import LocalComm
from dlemu.emulator import job as jobs
from dlemu.emulator.loop import StepRange
from dlemu.emulator.steplog import TRAINING, StepLog
from tests.runs import make_job


def test_the_schedule_is_not_made_again_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as long as the run has epochs: a run of many would be slowed by its own progress line."""
    job = make_job(ranks=1, epochs=3, steps=5)
    watch = watcher(job, LocalComm())
    assert watch is not None
    monkeypatch.setattr(jobs, "make_schedule", None)
    for step in range(1, 6):
        watch(
            StepRange(phase=TRAINING, epoch=2, block=1, first_step=1, compute_ns=np.zeros(5, np.int64)),
            step,
            StepLog(9),
        )
