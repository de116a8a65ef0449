"""Progress of a running training job, from the step logs that its ranks write."""

from __future__ import annotations

import os
from bisect import bisect_left

import numpy as np

from dlemu.jobs.training.measured import Facts
from dlemu.jobs.training.steplog import STEP_DTYPE, TRAINING, StepRows, log_name
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.rates import known
from dlemu.results.live import Figure, Progress, seconds_left

RECENT_SECONDS = 10.0
"""Rates are means over the steps of this time."""
_MOST_ROWS = 2000
"""The last rows of a rank that are read: the numbers of a longer epoch are those of its last steps."""


class LiveTraining:
    def __init__(self, facts: Facts, live_folder: str) -> None:
        self._folder, self._ranks = live_folder, facts.ranks
        self._epoch_steps = [epoch.steps for epoch in facts.schedule]
        self._exclude = facts.workload.metric.exclude_start_steps
        self._first_ns: dict[int, int] = {}
        """Rank -> start of its first step's wait."""

    def __call__(self) -> Progress | None:
        """Return the run's progress; None before the first step."""
        logs = {rank: rows for rank in range(self._ranks) if len(rows := self._last_rows(rank))}
        if not logs:
            return None
        done, slowest = min((self._steps_done(rows[-1]), rank) for rank, rows in logs.items())
        total, last = sum(self._epoch_steps), logs[slowest][-1]
        elapsed = (int(last["met_ns"]) - self._first_ns[slowest]) / 1e9
        epoch = min(int(last["epoch"]), len(self._epoch_steps))
        phase = "" if last["phase"] == TRAINING else "evaluation after "
        steps = done - sum(self._epoch_steps[: epoch - 1])
        epochs = [rows[(rows["epoch"] == rows["epoch"][-1]) & (rows["phase"] == TRAINING)] for rows in logs.values()]
        recent = [rows[rows["met_ns"] > rows["met_ns"][-1] - RECENT_SECONDS * 1e9] for rows in logs.values()]
        seconds = [max(1, int(rows["met_ns"][-1] - rows["free_ns"][0])) / 1e9 for rows in recent]

        def per_second(column: str) -> float:
            return sum(float(rows[column].sum()) / spent for rows, spent in zip(recent, seconds, strict=True))

        return Progress(
            at=f"{phase}epoch {epoch}/{len(self._epoch_steps)}, step {steps}/{self._epoch_steps[epoch - 1]}",
            done=done,
            total=total,
            au_percent=known(au_percent(kept_rows(np.concatenate(epochs), self._exclude, 0))),
            mb_per_second=per_second("app_bytes") / 1e6,
            seconds_left=seconds_left(elapsed, done, total),
            figures=(
                Figure("samples", per_second("samples"), "/s"),
                Figure("wait", 100 * per_second("wait_ns") / 1e9 / len(recent), "%"),
            ),
        )

    def _last_rows(self, rank: int) -> StepRows:
        """Return a rank's last rows; of the mapped file, as large as the whole run, only few pages are read."""
        path = os.path.join(self._folder, log_name(rank))
        if not os.path.exists(path) or os.path.getsize(path) < STEP_DTYPE.itemsize:
            return np.empty(0, STEP_DTYPE)
        rows = np.memmap(path, dtype=STEP_DTYPE, mode="r")
        written = bisect_left(range(len(rows)), True, key=lambda row: bool(rows["step"][row] == 0))
        if written:
            self._first_ns.setdefault(rank, int(rows["asked_ns"][0]))
        return np.array(rows[max(0, written - _MOST_ROWS) : written])

    def _steps_done(self, last: np.void) -> int:
        """Return how many training steps a rank has done, by its last row."""
        epoch = min(int(last["epoch"]), len(self._epoch_steps))
        steps = int(last["step"]) if last["phase"] == TRAINING else self._epoch_steps[epoch - 1]
        return sum(self._epoch_steps[: epoch - 1]) + steps
