"""What the times of a run say of its storage where its reads were not kept: DLIO's results, published ones.

Two times of an epoch show two things. In the first step all readers of all accelerators begin at once: it shows what
the storage gives to as many. The others show, where that would have been enough for them, what the host takes of each
step; and where not, what the storage gives all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import CONFIDENCE, MOST_HALF_WIDTH, Calibration, given_speed
from dlemu.jobs.training.prediction.curve import flat
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.metrics.t_interval import estimate
from dlemu.results.wording import count

ROWS = 20_000
"""Rank-steps of each simulation: epochs of published runs are alike."""
HALVINGS = 18  # of a range of 50,000 times by geometric means: to 0.004 %
NEAR = 0.002
"""Share of an epoch's time that counts as none."""
FASTEST = 1e3
"""Times the demand: a storage that nobody waits for."""


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A run of which its times are known."""

    folder: str
    workload: Workload
    ranks: int
    hosts: int
    epoch_seconds: tuple[float, ...]
    """Training of each epoch, first step included."""
    first_seconds: tuple[float, ...] = ()
    """The wait for the first batch of each epoch; empty where it is not known."""


def calibrate_from_times(run: ForeignRun) -> Calibration:
    """Return the storage, flat, and the host whose model takes as long as the run; raises UserError where none does.

    DLIO's host needs a batch only after the step before it; so does the model that is fitted.
    """
    workload = replace(run.workload, train=replace(run.workload.train, epochs=1, synchronous=True))
    wanted = float(np.mean(run.epoch_seconds))

    def outcome(mb_per_second: float, step_seconds: float = 0.0) -> tuple[float, float]:
        """Return an epoch's time and its first step's."""
        given = given_speed(mb_per_second, cores=np.inf)
        known = replace(given, costs=replace(given.costs, step_seconds=step_seconds))
        found = Model(workload, known, hosts=run.hosts).run(run.ranks, most_rows=ROWS)
        seconds = found.outcome.training_seconds * found.planned_steps / found.simulated_steps
        return seconds, found.outcome.time_to_first_batch_seconds

    compute = mean_seconds(workload.train.computation_time)
    demand = run.ranks * workload.reader.batch_size * Model(workload, given_speed(1.0, cores=1)).mean_sample_bytes
    most = FASTEST * demand / compute / 1e6
    unlimited, _ = outcome(most)
    if wanted < unlimited * (1 - NEAR):
        raise UserError(
            f"{run.folder}: its epochs took {wanted:.1f} s, but computation alone takes {unlimited:.1f} s: its "
            "settings are not those it ran with"
        )
    always = _solve(lambda speed: outcome(speed)[0], wanted, most / FASTEST / 50, most)  # from 2 % of the demand
    if not run.first_seconds:
        return _made(run, always, 0.0, saturated=wanted > unlimited * (1 + 10 * NEAR))
    at_first = _solve(lambda speed: outcome(speed)[1], float(np.mean(run.first_seconds)), most / FASTEST / 50, most)
    if outcome(at_first)[0] > wanted * (1 - NEAR):
        return _made(run, always, 0.0, saturated=True)
    late = _solve(lambda seconds: -outcome(at_first, seconds)[0], -wanted, 0.0, compute)
    return _made(run, at_first, late, saturated=True)


def _made(run: ForeignRun, mb_per_second: float, step_seconds: float, *, saturated: bool) -> Calibration:
    given = given_speed(mb_per_second, cores=np.inf)
    return replace(
        given,
        source=f"the times of {count(len(run.epoch_seconds), 'epoch')} of {run.folder} "
        f"({count(run.ranks, 'accelerator')})",
        curve=flat(mb_per_second),
        saturated=saturated,
        half_width_percent=_half_width_percent(run.epoch_seconds),
        costs=replace(given.costs, step_seconds=step_seconds),
    )


def _half_width_percent(seconds: Sequence[float]) -> float:
    """Return that of the mean time of an epoch; the most where a single one is known."""
    values = 100 * np.array(seconds) / np.mean(seconds)
    return min(MOST_HALF_WIDTH, estimate(values, CONFIDENCE).half_width_percent)


def _solve(falling: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where a falling function has a value, by halving what is between; an end where it has it nowhere."""
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return high
