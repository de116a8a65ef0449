"""Plans and runs trials, each a `dlemu train`; watches their step logs, and stops each once its verdict is certain.

The AU of a short run is too high for two reasons: batches are read ahead while the first step waits, and at the end of
an epoch the accelerators still compute on queued batches, while nothing more is read. So both ends are cut off, and the
time that accelerators computed (`busy`) is compared with the computation for which data arrived meanwhile (`fed`).
"""

from __future__ import annotations

import glob
import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import STEP_DTYPE, TRAINING, StepRows, read_log
from dlemu.jobs.training.wording import memory_warning
from dlemu.metrics.rates import Intervals
from dlemu.metrics.rows import Rows, as_table
from dlemu.metrics.t_interval import SequentialTest
from dlemu.results import LIVE
from dlemu.results.figures import CONFIDENCE
from dlemu.results.kinds import read_figures
from dlemu.results.wording import count
from dlemu.runner.child_run import run_train
from dlemu.runner.run_folder import request_stop
from dlemu.studies.answers import Question, Trial

WINDOW_SECONDS = 1.0  # minimum length of a window: long compared with the time slices of drives, caches and throttles
WINDOW_STEPS = 2  # minimum of steps in a window: with one, chance would decide which window a batch falls into
_WATCHED_RANKS = 64  # maximum of step logs to read during a trial: ranks are alike, and reading must not disturb them

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SteadySeries:
    """The steady part of a trial: for each window of time a mean over ranks, in percent of the window's length."""

    busy: Values  # time that the accelerators computed: AU
    fed: Values  # computation time of the batches read in the window; half a batch counts half

    @property
    def sustained(self) -> Values:
        """The AU that the storage can sustain: `busy` or `fed`, whichever has the smaller mean."""
        return self.fed if len(self.fed) and self.fed.mean() < self.busy.mean() else self.busy


def steady_series(rows: Rows, *, ahead: int, window_seconds: float) -> SteadySeries:
    """Return the series from the training rows of one or more ranks; it is empty until a first window is complete.

    `ahead`: how many batches a rank may read before it needs them. Both ends of a block (a part of an epoch) are left
    out: its first step, and its last `ahead` steps, whose batches were queued. Windows begin after a rank's first step.
    """
    series_by_block: dict[tuple[int, int], list[Values]] = {}
    for block_rows in as_table(rows).by_block:
        block = int(block_rows["epoch"][0]), int(block_rows["block"][0])
        series = _rank_series(block_rows, ahead, round(window_seconds * 1e9))
        series_by_block.setdefault(block, []).append(series)
    means = [np.empty((2, 0))]
    for _, rank_series in sorted(series_by_block.items()):
        windows = min(series.shape[1] for series in rank_series)
        means.append(np.mean([series[:, :windows] for series in rank_series], axis=0))
    busy, fed = np.concatenate(means, axis=1)
    return SteadySeries(busy=busy, fed=fed)


def _rank_series(rows: Rows, ahead: int, window_ns: int) -> Values:
    """Return `busy` and `fed` of one rank in each window of a block: shape (2, windows), %."""
    last = len(rows) - 1 - ahead  # index of the last step that counts
    if last <= 1:
        return np.empty((2, 0))
    names = ("free_ns", "wait_ns", "compute_ns", "started_ns", "finished_ns")
    free, wait, compute, started, finished = (rows[name].astype(np.float64) for name in names)
    begins = free + wait
    edges = free[1] + window_ns * np.arange((free[last] - free[1]) // window_ns + 1)
    computed = Intervals(begins, np.maximum(begins + compute, begins + 1), edges)
    read = Intervals(started, np.maximum(finished, started + 1), edges)
    return 100 * np.stack([intervals.rates(compute) for intervals in (computed, read)])


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """The settings that all trials of a search share."""

    argv: tuple[str, ...]  # options and overrides
    question: Question
    window_seconds: float
    batches_ahead: int
    seed: int  # of the first trial; each further trial has another seed, and so reads in another order

    def sustained(self, rows: Rows) -> Values:
        """Return the sustained AU in each window of the steady part of a trial, %."""
        return steady_series(rows, ahead=self.batches_ahead, window_seconds=self.window_seconds).sustained


def plan_trials(job: TrainingJob, question: Question, trial_seconds: float, argv: Sequence[str]) -> TrialPlan:
    """Return the plan of trials that take `trial_seconds` at full speed, or less if the workload has fewer steps."""
    train, ahead = job.workload.train, batches_ahead_of(job)
    steps = math.ceil(trial_seconds / step_seconds(job.workload)) + 1 + ahead
    if train.total_training_steps > 0:
        steps = min(steps, train.total_training_steps)
    # AU depends on training alone, so a trial does nothing else.
    training_only = ("workflow.generate_data=false", "workflow.checkpoint=false", "workflow.evaluation=false")
    return TrialPlan(
        argv=(*argv, *training_only, "output.report=false", f"train.total_training_steps={steps}"),
        question=question,
        window_seconds=window_seconds_of(job.workload),
        batches_ahead=ahead,
        seed=train.seed,
    )


def step_seconds(workload: Workload) -> float:
    return mean_seconds(workload.train.computation_time)


def window_seconds_of(workload: Workload) -> float:
    return max(WINDOW_SECONDS, WINDOW_STEPS * step_seconds(workload))


def batches_ahead_of(job: TrainingJob) -> int:
    return job.batches_ahead + (0 if job.workload.train.synchronous else 1)


def run_trial(plan: TrialPlan, accelerators: int, number: int, folder: str) -> Trial:
    """Run trial `number` of a search (from 1) as `dlemu train`, and stop it once its verdict is certain.

    Raises UserError if this host can't run so many accelerators, DlemuError if the trial was too short for a result.
    """
    question, live = plan.question, os.path.join(folder, LIVE)
    sequential_test = SequentialTest(question.threshold_percent, CONFIDENCE)
    is_decided = False

    def stop_if_decided() -> None:
        nonlocal is_decided
        if not is_decided and sequential_test(plan.sustained(_live_rows(live))):
            is_decided = True
            request_stop(live)

    argv = [*plan.argv, f"ranks={accelerators}", f"train.seed={plan.seed + number - 1}"]
    started = time.monotonic()
    run_train(argv, folder, stop_if_decided, shlex.split(question.launcher.format(ranks=accelerators)))
    seconds = time.monotonic() - started
    run, figures = read_figures(folder)
    summary = run.summary
    compute_seconds = float(run.training["compute_ns"].sum()) / 1e9  # of all accelerators together
    values = plan.sustained(run.training)
    if len(values) < 2:
        raise DlemuError(
            f"the trial with {count(accelerators, 'accelerator')} ended before it gave a result ({len(values)} windows "
            f"of {plan.window_seconds:g} s in its steady part): use more files, or a longer --trial-seconds"
        )
    return Trial(
        folder=os.path.basename(folder),
        window_au_percent=tuple(round(float(value), 3) for value in values),
        seconds=seconds,
        mb_per_accelerator=(summary.metrics.app_bytes or 0) / 1e6 / compute_seconds,
        limited_by=summary.limited_by,
        page_cache_warning=None if question.cached else memory_warning(summary.memory),
        figures=figures,
    )


def _live_rows(live_folder: str) -> StepRows:
    """Return the training rows so far of a running trial, from the step logs of at most _WATCHED_RANKS ranks."""
    paths = sorted(glob.glob(os.path.join(glob.escape(live_folder), "rank_*.steps")))
    paths = paths[:: max(1, math.ceil(len(paths) / _WATCHED_RANKS))]
    try:
        rows = np.concatenate([read_log(path) for path in paths]) if paths else np.empty(0, STEP_DTYPE)
    except FileNotFoundError:  # the run has just ended and merged the logs into its table
        return np.empty(0, STEP_DTYPE)
    training: StepRows = rows[rows["phase"] == TRAINING]
    return training
