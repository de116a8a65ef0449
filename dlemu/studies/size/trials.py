"""Runs trials as `dlemu train`, watches their step logs, and stops each once its verdict is certain.

Two things make the AU of a short run too high: batches that were read ahead while its first step waited, and batches
still in the queue at the end of an epoch, when nothing more is read. So both ends are cut off, and the work that the
accelerators did (`busy`) is compared with what was read in the same time (`fed`).
"""

from __future__ import annotations

import glob
import math
import os
import shlex
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from dlemu.jobs.training.steplog import STEP_DTYPE, TRAINING, StepRows, read_log
from dlemu.metrics.rates import Intervals
from dlemu.metrics.rows import Rows, in_order
from dlemu.metrics.t_interval import SequentialTest
from dlemu.results import LIVE
from dlemu.results.figures import CONFIDENCE
from dlemu.results.kinds import read_figures
from dlemu.results.wording import count
from dlemu.runner.child_run import run_train
from dlemu.runner.run_folder import request_stop
from dlemu.studies.answers import Question, Trial

_WATCHED_RANKS = 64  # step logs read at a time, at most: ranks are alike, and watching must not disturb the run

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SteadySeries:
    """One value for each window of time, in percent of it."""

    busy: Values
    """Share of time that accelerators computed: AU, mean over ranks."""
    fed: Values
    """Time that accelerators will compute on what was read in the window; a batch that is half read counts half."""

    @property
    def sustained(self) -> Values:
        """The series with the smaller mean, which can be sustained for ever."""
        return self.fed if len(self.fed) and self.fed.mean() < self.busy.mean() else self.busy


def steady_series(rows: Rows, *, ahead: int, window_seconds: float) -> SteadySeries:
    """Return the series of training rows of one or more ranks; empty when there is no whole window yet.

    `ahead` is how many batches may be read before they are needed. The first step of each block and its last `ahead`
    steps are left out; the latter are needed to know what was in the queue at the end of the last window. The time of
    each rank is by its own clock, from the end of its first step.
    """
    per_block: dict[tuple[int, int], list[Values]] = {}
    for part in in_order(rows).by_block:
        key = int(part["epoch"][0]), int(part["block"][0])
        per_block.setdefault(key, []).append(_of_rank(part, ahead, round(window_seconds * 1e9)))
    merged = [np.empty((2, 0))]
    for _, ranks in sorted(per_block.items()):
        windows = min(part.shape[1] for part in ranks)
        merged.append(np.mean([part[:, :windows] for part in ranks], axis=0))
    busy, fed = np.concatenate(merged, axis=1)
    return SteadySeries(busy=busy, fed=fed)


def _of_rank(part: Rows, ahead: int, window_ns: int) -> Values:
    """Return busy and fed of a rank's block in each window, shape (2, windows)."""
    last = len(part) - 1 - ahead
    if last <= 1:
        return np.empty((2, 0))
    names = ("free_ns", "wait_ns", "compute_ns", "started_ns", "finished_ns")
    free, wait, compute, started, finished = (part[name].astype(np.float64) for name in names)
    begins = free + wait
    edges = free[1] + window_ns * np.arange((free[last] - free[1]) // window_ns + 1)
    computed = Intervals(begins, np.maximum(begins + compute, begins + 1), edges)
    read = Intervals(started, np.maximum(finished, started + 1), edges)
    return 100 * np.stack([spread.rates(compute) for spread in (computed, read)])


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """What all trials of a search have in common."""

    words: tuple[str, ...]
    question: Question
    window_seconds: float
    batches_ahead: int
    total_steps: int  # of a trial, at most
    seed: int  # of the first trial's shuffles; each further trial has another seed, so another order of reads

    def sustained(self, rows: Rows) -> Values:
        """Return the AU of each window of the steady part of a trial, in percent."""
        return steady_series(rows, ahead=self.batches_ahead, window_seconds=self.window_seconds).sustained


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

    words = [*plan.words, f"ranks={accelerators}", f"train.seed={plan.seed + number - 1}"]
    words.append(f"train.total_training_steps={plan.total_steps}")
    started = time.monotonic()
    run_train(words, folder, stop_if_decided, shlex.split(question.launcher.format(ranks=accelerators)))
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
        page_cache_warning=None if question.cached or summary.page_cache is None else summary.page_cache.warning,
        figures=figures,
    )


def _live_rows(live_folder: str) -> StepRows:
    paths = sorted(glob.glob(os.path.join(glob.escape(live_folder), "rank_*.steps")))
    paths = paths[:: max(1, math.ceil(len(paths) / _WATCHED_RANKS))]
    try:
        rows = np.concatenate([read_log(path) for path in paths]) if paths else np.empty(0, STEP_DTYPE)
    except FileNotFoundError:  # the run has just ended, and merged the logs into its table
        return np.empty(0, STEP_DTYPE)
    training: StepRows = rows[rows["phase"] == TRAINING]
    return training
