"""Calibration from a run of which only the durations of epochs are known: DLIO's results and published results.

All readers begin at once, so the wait for the first batch shows their throughput. If the epochs took longer than this
explains, the rest is the host's overhead: a share of each step, because its load depends on bytes/s, not on steps/s.
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
    modelled = replace(run, workload=workload)
    measured_seconds = float(np.median(run.epoch_seconds))
    step_bytes = run.ranks * workload.reader.batch_size * Model(workload, given_speed(1.0, cores=1)).mean_sample_bytes
    demand_mb_per_second = step_bytes / mean_seconds(workload.train.computation_time) / 1e6
    slowest, fastest = 0.02 * demand_mb_per_second, 1e3 * demand_mb_per_second  # limits of the search
    unlimited_seconds, _ = _simulate(modelled, fastest)
    if measured_seconds < unlimited_seconds * (1 - TOLERANCE):
        raise UserError(
            f"{run.folder}: its epochs took {measured_seconds:.1f} s, but computation alone takes "
            f"{unlimited_seconds:.1f} s: its settings are not those it ran with"
        )
    epoch_mb_per_second = _solve(lambda rate: _simulate(modelled, rate)[0] - measured_seconds, slowest, fastest)
    epoch_percents = 100 * np.array(run.epoch_seconds) / np.mean(run.epoch_seconds)
    calibration = replace(
        given_speed(epoch_mb_per_second, cores=None),
        source=f"the times of {count(len(run.epoch_seconds), 'epoch')} of {run.folder} "
        f"({count(run.ranks, 'accelerator')})",
        saturated=measured_seconds > unlimited_seconds * (1 + WAITING_SHARE),
        half_width_percent=min(MAX_HALF_WIDTH_PERCENT, estimate(epoch_percents, 0.95).half_width_percent),
    )
    first_step = _first_step(modelled, measured_seconds, slowest, fastest)
    if first_step is None:
        return calibration
    return replace(calibration, saturated=False, first_step=first_step)  # the rate of whole epochs is a lower bound


def _first_step(run: ForeignRun, measured_seconds: float, slowest: float, fastest: float) -> FirstStep | None:
    """Return the explanation by the first steps, from a rate between `slowest` and `fastest`; None if there is none."""
    if not run.first_seconds:
        return None
    first_seconds = float(np.median(run.first_seconds))  # the first epoch's is often a slow start
    mb_per_second = _solve(lambda rate: _simulate(run, rate)[1] - first_seconds, slowest, fastest)
    if _simulate(run, mb_per_second)[0] > measured_seconds * (1 - TOLERANCE):  # no time is left for host overhead
        return None
    step_share = _solve(lambda share: measured_seconds - _simulate(run, mb_per_second, share)[0], 0.0, 1.0)
    readers = run.ranks * max(1, run.workload.reader.read_threads)
    return FirstStep(mb_per_second=mb_per_second, readers=readers, step_share=step_share)


def _simulate(run: ForeignRun, mb_per_second: float, step_share: float = 0.0) -> tuple[float, float]:
    """Return the simulated duration of an epoch, and of the wait for its first batch."""
    calibration = replace(given_speed(mb_per_second, cores=None), step_share=step_share)
    simulated = Model(run.workload, calibration, hosts=run.hosts).run(run.ranks, max_rows=ROWS)
    first_seconds = simulated.first_batch_seconds
    seconds_per_step = (simulated.training_seconds - first_seconds) / simulated.simulated_steps
    return first_seconds + seconds_per_step * simulated.planned_steps, first_seconds


def _solve(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the argument from `low` to `high` at which a falling function reaches 0, found by bisection."""
    for _ in range(18):  # geometric middles narrow 1 to 50,000 to 0.004 %; while `low` is 0, there is none
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return high
