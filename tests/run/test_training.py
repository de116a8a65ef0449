"""What a run reports while the accelerator computes."""

from __future__ import annotations

import numpy as np
import pytest

from dlemu.jobs.training import live
from dlemu.jobs.training.live import progress_of
from dlemu.jobs.training.loop import StepRange
from dlemu.jobs.training.steplog import TRAINING, StepLog, StepRecord
from dlemu.loaders.loader_base import BatchTrace
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.runner.events import Event, TrainingStep
from tests.runs import make_job, make_log, with_blocks


@pytest.mark.parametrize("looks", [1, 3, 40])
def test_the_au_so_far_is_that_of_the_epochs_kept_steps_whenever_one_looks(
    monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    monkeypatch.setattr(live, "PROGRESS_SECONDS", -1)
    job = make_job(ranks=1, epochs=2, steps=20, **with_blocks(7))
    rows, events = make_log(job).rows, list[Event]()
    look, log = progress_of(job, events.append), StepLog(40)
    for taken, row in enumerate(rows, start=1):
        record, values = StepRecord(*row.tolist()[: len(StepRecord._fields)]), row.tolist()[len(StepRecord._fields) :]
        log.add(record, BatchTrace(0, [], *values))
        if taken % looks == 0:
            epoch, step = int(row["epoch"]), int(row["step"])
            step_range = StepRange(phase=TRAINING, epoch=epoch, block=1, first_step=1, compute_ns=np.zeros(1, np.int64))
            look(step_range, step, log)
            so_far = rows[:taken][rows[:taken]["epoch"] == epoch]
            wanted = au_percent(kept_rows(so_far, job.workload.metric.exclude_start_steps, 0))
            told = events[-1]
            assert isinstance(told, TrainingStep)
            assert told.au_percent == (None if np.isnan(wanted) else pytest.approx(wanted))
            seconds = float(so_far["met_ns"][-1] - so_far["asked_ns"][0]) / 1e9
            assert told.mb_per_second == pytest.approx(so_far["app_bytes"].sum() / 1e6 / seconds)
