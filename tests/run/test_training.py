"""What a run reports while the accelerator computes."""

from __future__ import annotations

import numpy as np
import pytest

from dlemu.emulator import job as jobs
from dlemu.emulator.loop import StepRange
from dlemu.emulator.steplog import TRAINING, StepLog
from dlemu.run.events import Event, TrainingBegan, TrainingStep
from dlemu.run.training import progress_of
from tests.runs import make_job


def test_progress_is_told_once_in_a_while_and_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule, as long as the run has epochs, is not made again at each step: that would slow the run."""
    job = make_job(ranks=1, epochs=3, steps=5)
    events: list[Event] = []
    look = progress_of(job, events.append)
    monkeypatch.setattr(jobs, "make_schedule", None)
    for step in range(1, 6):
        step_range = StepRange(phase=TRAINING, epoch=2, block=1, first_step=1, compute_ns=np.zeros(5, np.int64))
        look(step_range, step, StepLog(9))
    began, first, *_, last = events
    assert began == TrainingBegan(epoch_steps=(5, 5, 5))
    assert first == TrainingStep(epoch=2, epochs=3, step=1, steps=5, au_percent=None, mb_per_second=0.0)
    assert isinstance(last, TrainingStep)
    assert last.step == 5
