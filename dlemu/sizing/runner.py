"""Trials as real runs: `dlemu train`, watched by its step logs and stopped once the verdict is settled."""

from __future__ import annotations

import glob
import json
import os
import shlex
import shutil
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from datagen.errors import DlemuError
from dlemu.emulator.steplog import STEP_DTYPE, TRAINING, StepRows, read_log
from dlemu.emulator.stopping import ask_to_stop
from dlemu.sizing.process import run_train
from dlemu.sizing.settled import Looks, estimate
from dlemu.sizing.steady import Series, steady_series
from dlemu.sizing.trial import Trial

_WATCHED_RANKS = 64
"""Step logs that a look reads at most: ranks are alike, and a look must cost nothing."""


class Runner(Protocol):
    """Tries a count of accelerators. Raises UserError when that count can't run here."""

    def run(self, accelerators: int, number: int) -> Trial:
        """Run the trial, the `number`-th of the search (from 1)."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """What all trials of a search have in common."""

    words: tuple[str, ...]
    """Overrides of every trial."""
    options: tuple[str, ...]
    """Options of `dlemu train`."""
    launcher: str
    """Command that starts the ranks, with `{ranks}` in it; empty forks them."""
    folder: str
    """The folder of the search: trials lie in it."""
    threshold_percent: float
    confidence: float
    stretch_seconds: float
    batches_ahead: int
    total_steps: int
    """Most steps of a trial."""
    cached: bool
    """The page cache may serve."""
    seed: int
    """Of the first trial's shuffles; each further trial reads in another order."""


class TrainRunner:
    """Runs trials by the program itself."""

    def __init__(self, plan: TrialPlan) -> None:
        self._plan = plan

    def run(self, accelerators: int, number: int) -> Trial:
        """Run one trial and return what it showed."""
        plan = self._plan
        folder = os.path.join(plan.folder, f"trial-{number:02}-{accelerators}")
        shutil.rmtree(folder, ignore_errors=True)  # a trial that was interrupted
        os.makedirs(folder)
        started = time.monotonic()
        watch = _Watch(plan, folder)
        words = [
            *plan.words,
            f"ranks={accelerators}",
            f"train.seed={plan.seed + number - 1}",
            f"train.total_training_steps={plan.total_steps}",
        ]
        launcher = shlex.split(plan.launcher.format(ranks=accelerators))
        run_train([*plan.options, *words], folder, watch, launcher)
        return self._read(accelerators, folder, watch.settled, time.monotonic() - started)

    def _read(self, accelerators: int, folder: str, settled: bool, seconds: float) -> Trial:
        plan = self._plan
        rows = read_steps(folder)
        series = steady_series(rows, ahead=plan.batches_ahead, stretch_seconds=plan.stretch_seconds)
        with open(os.path.join(folder, "summary.json")) as lines:
            summary = json.load(lines)
        return make_trial(summary, rows, series, plan, accelerators, os.path.basename(folder), settled, seconds)


class _Watch:
    """Looks at a running trial's step logs; asks it to stop when the verdict is settled."""

    def __init__(self, plan: TrialPlan, folder: str) -> None:
        self._plan, self._live = plan, os.path.join(folder, "live")
        self._looks = Looks(plan.threshold_percent, plan.confidence)
        self.settled = False

    def __call__(self) -> None:
        if self.settled:
            return
        rows = _live_rows(self._live)
        if not len(rows):
            return
        series = steady_series(rows, ahead=self._plan.batches_ahead, stretch_seconds=self._plan.stretch_seconds)
        if self._looks(series.sustained):
            self.settled = True
            ask_to_stop(self._live)


def _live_rows(live_folder: str) -> StepRows:
    paths = sorted(glob.glob(os.path.join(glob.escape(live_folder), "rank_*.steps")))
    paths = paths[:: max(1, len(paths) // _WATCHED_RANKS)]
    try:
        rows = np.concatenate([read_log(path) for path in paths]) if paths else np.empty(0, STEP_DTYPE)
    except FileNotFoundError:  # the run has just ended and put its logs together
        return np.empty(0, STEP_DTYPE)
    training: StepRows = rows[rows["phase"] == TRAINING]
    return training


def read_steps(folder: str) -> StepRows:
    """Return the training rows of a run's folder."""
    import pyarrow.parquet as pq

    table = pq.read_table(os.path.join(folder, "steps.parquet"))
    rows = np.zeros(table.num_rows, STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        rows[name] = table[name].to_numpy()
    training: StepRows = rows[rows["phase"] == TRAINING]
    return training


def make_trial(
    summary: dict[str, Any],
    rows: StepRows,
    series: Series,
    plan: TrialPlan,
    accelerators: int,
    folder: str,
    settled: bool,
    seconds: float,
) -> Trial:
    """Put a trial together from its run; raises DlemuError when it was too short to say anything."""
    values = series.sustained
    if len(values) < 2:
        raise DlemuError(
            f"the trial with {accelerators} accelerators ended before it said anything ({len(values)} stretches of "
            f"{plan.stretch_seconds:g} s in its steady part): use more files, or a longer --trial-seconds"
        )
    found = estimate(values, plan.confidence)
    metrics = summary["metrics"]
    compute_seconds = float(rows["compute_ns"].sum()) / 1e9
    return Trial(
        accelerators=accelerators,
        folder=folder,
        au_percent=found.au_percent,
        half_width_percent=found.half_width_percent,
        settled=settled or found.settled(plan.threshold_percent),
        stretch_au_percent=tuple(round(float(value), 3) for value in values),
        seconds=seconds,
        au_headline_percent=metrics["au_percent"]["mean"],
        au_rules_percent=metrics["au_rules_percent"]["mean"],
        ceiling_au_percent=metrics["ceiling_au_percent"],
        samples_per_second=metrics["samples_per_second"]["mean"],
        app_mb_per_second=metrics["app_mb_per_second"]["mean"],
        device_mb_per_second=(metrics.get("device_mb_per_second") or {}).get("mean"),
        device_bytes_percent_of_app=(metrics.get("device_bytes_percent_of_app") or {}).get("mean"),
        mb_per_accelerator=metrics["app_bytes"] / 1e6 / compute_seconds,
        training_seconds=metrics["training_seconds"],
        limited_by=summary.get("limited_by"),
        page_cache_warning=None if plan.cached else (summary.get("page_cache") or {}).get("warning"),
    )
