"""Calibration from a run of which only the durations of epochs are known: DLIO's results and published results.

All readers begin at once, so the wait for the first batch shows their throughput. If the epochs took longer than this
explains, the rest is the host's overhead: a share of each step, as accelerators of equal demand load a host alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.pattern import MAX_HALF_WIDTH_PERCENT
from dlemu.jobs.training.prediction.calibration import Calibration, FirstStep, given_speed
from dlemu.jobs.training.prediction.from_reads import WAITING_SHARE
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.metrics.t_interval import estimate
from dlemu.results.wording import count

ROWS = 20_000  # maximum rank-steps (ranks x steps) of a simulation: a longer epoch is extrapolated
TOLERANCE = 0.002  # relative difference up to which two durations of an epoch are taken to be equal


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A run of another benchmark: its settings and the durations of its epochs."""

    folder: str
    workload: Workload
    ranks: int
    hosts: int
    epoch_seconds: tuple[float, ...]  # training time of each epoch, first step included
    first_seconds: tuple[float, ...] = ()  # wait for the first batch of each epoch; empty if it is not known


def calibrate_from_times(run: ForeignRun) -> Calibration:
    """Return the calibration with which a simulated run takes as long as this one; raises UserError.

    There may be two explanations: `curve` is a storage so slow that the epochs take as long; `first_step` is a storage
    as fast as in the first steps, with a host that delays the other steps.
    """
    # DLIO fetches a batch only after the previous step.
    workload = replace(run.workload, train=replace(run.workload.train, epochs=1, synchronous=True))
    measured_seconds = float(np.median(run.epoch_seconds))

    def simulate(mb_per_second: float, step_share: float = 0.0) -> tuple[float, float]:
        """Return the simulated duration of an epoch, and of the wait for its first batch."""
        calibration = replace(given_speed(mb_per_second, cores=None), step_share=step_share)
        simulated = Model(workload, calibration, hosts=run.hosts).run(run.ranks, max_rows=ROWS)
        first_seconds = simulated.first_batch_seconds
        seconds_per_step = (simulated.training_seconds - first_seconds) / simulated.simulated_steps
        return first_seconds + seconds_per_step * simulated.planned_steps, first_seconds

    step_bytes = run.ranks * workload.reader.batch_size * Model(workload, given_speed(1.0, cores=1)).mean_sample_bytes
    demand_mb_per_second = step_bytes / mean_seconds(workload.train.computation_time) / 1e6
    slowest, fastest = 0.02 * demand_mb_per_second, 1e3 * demand_mb_per_second  # limits of the search
    unlimited_seconds, _ = simulate(fastest)
    if measured_seconds < unlimited_seconds * (1 - TOLERANCE):
        raise UserError(
            f"{run.folder}: its epochs took {measured_seconds:.1f} s, but computation alone takes "
            f"{unlimited_seconds:.1f} s: its settings are not those it ran with"
        )
    epoch_mb_per_second = _solve(lambda rate: simulate(rate)[0], measured_seconds, slowest, fastest)
    epoch_percents = 100 * np.array(run.epoch_seconds) / np.mean(run.epoch_seconds)
    calibration = replace(
        given_speed(epoch_mb_per_second, cores=None),
        source=f"the times of {count(len(run.epoch_seconds), 'epoch')} of {run.folder} "
        f"({count(run.ranks, 'accelerator')})",
        saturated=measured_seconds > unlimited_seconds * (1 + WAITING_SHARE),
        half_width_percent=min(MAX_HALF_WIDTH_PERCENT, estimate(epoch_percents, 0.95).half_width_percent),
    )
    if not run.first_seconds:
        return calibration
    first_seconds = float(np.median(run.first_seconds))  # the first epoch's is often a slow start
    first_mb_per_second = _solve(lambda rate: simulate(rate)[1], first_seconds, slowest, fastest)
    if simulate(first_mb_per_second)[0] > measured_seconds * (1 - TOLERANCE):  # no time is left for host overhead
        return calibration
    first_step = FirstStep(
        mb_per_second=first_mb_per_second,
        readers=run.ranks * max(1, workload.reader.read_threads),
        step_share=_solve(lambda share: -simulate(first_mb_per_second, share)[0], -measured_seconds, 0.0, 1.0),
    )
    return replace(calibration, saturated=False, first_step=first_step)  # the rate of whole epochs is a lower bound


def _solve(falling: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return the argument from `low` to `high` at which a falling function reaches `target`, found by bisection."""
    for _ in range(18):  # each halves the range's logarithm: 1 to 50,000 is narrowed to 0.004 %
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        if falling(middle) > target:
            low = middle
        else:
            high = middle
    return high
