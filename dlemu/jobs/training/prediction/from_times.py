"""Calibration from a run of which only the epochs' durations are known, such as DLIO's results and published ones.

All readers begin at once, so the first wait shows their throughput; what a faster model lacks is the host's overhead.
That is kept as a share of the step: accelerators that ask for as much per second load the same host and storage alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import (
    CONFIDENCE,
    MAX_HALF_WIDTH_PERCENT,
    WAITING_SHARE,
    Calibration,
    FirstStep,
    given_speed,
)
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.metrics.t_interval import estimate
from dlemu.results.wording import count

ROWS = 20_000
"""Maximum rank-steps (ranks x steps) of a simulation: a longer epoch is extrapolated."""
BISECTIONS = 18  # narrows a range of 1 to 50,000 to 0.004 %, halving its logarithm each time
TOLERANCE = 0.002
"""Relative difference of an epoch's duration that is neglected."""
MAX_SPEED_FACTOR = 1e3
"""A storage this many times as fast as the accelerators' demand makes nobody wait."""


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A run of another benchmark: its settings and the durations of its epochs."""

    folder: str
    workload: Workload
    ranks: int
    hosts: int
    epoch_seconds: tuple[float, ...]
    """Training time of each epoch, first step included."""
    first_seconds: tuple[float, ...] = ()
    """Wait for the first batch of each epoch; empty where it is not known."""


def calibrate_from_times(run: ForeignRun) -> Calibration:
    """Return the throughput and the host's overhead with which the model lasts as long as the run; raises UserError.

    DLIO fetches a batch only after the previous step (`train.synchronous`); so does the fitted model. The times have
    two explanations: a storage as slow as the epochs (`curve`), or one as fast as the first step, with a host that
    delays the others (`first_step`).
    """
    workload = replace(run.workload, train=replace(run.workload.train, epochs=1, synchronous=True))
    wanted = float(np.median(run.epoch_seconds))

    def outcome(mb_per_second: float, step_share: float = 0.0) -> tuple[float, float]:
        """Return the simulated duration of an epoch, and of the wait for its first batch."""
        calibration = replace(given_speed(mb_per_second, cores=None), step_share=step_share)
        simulated = Model(workload, calibration, hosts=run.hosts).run(run.ranks, most_rows=ROWS)
        first = simulated.first_batch_seconds
        steps = (simulated.training_seconds - first) / simulated.simulated_steps
        return first + steps * simulated.planned_steps, first

    compute = mean_seconds(workload.train.computation_time)
    demand = run.ranks * workload.reader.batch_size * Model(workload, given_speed(1.0, cores=1)).mean_sample_bytes
    least, most = (factor * demand / compute / 1e6 for factor in (0.02, MAX_SPEED_FACTOR))
    unlimited, _ = outcome(most)
    if wanted < unlimited * (1 - TOLERANCE):
        raise UserError(
            f"{run.folder}: its epochs took {wanted:.1f} s, but computation alone takes {unlimited:.1f} s: its "
            "settings are not those it ran with"
        )
    lasting = _solve(lambda speed: outcome(speed)[0], wanted, least, most)
    epochs = 100 * np.array(run.epoch_seconds) / np.mean(run.epoch_seconds)
    found = replace(
        given_speed(lasting, cores=None),
        source=f"the times of {count(len(run.epoch_seconds), 'epoch')} of {run.folder} "
        f"({count(run.ranks, 'accelerator')})",
        saturated=wanted > unlimited * (1 + WAITING_SHARE),
        half_width_percent=min(MAX_HALF_WIDTH_PERCENT, estimate(epochs, CONFIDENCE).half_width_percent),
    )
    if not run.first_seconds:
        return found
    first = float(np.median(run.first_seconds))  # the first epoch's is often a slow start
    at_first = _solve(lambda speed: outcome(speed)[1], first, least, most)
    if outcome(at_first)[0] > wanted * (1 - TOLERANCE):
        return found
    return replace(
        found,
        saturated=False,  # the rate which lasted is a lower bound
        first_step=FirstStep(
            mb_per_second=at_first,
            readers=run.ranks * max(1, workload.reader.read_threads),
            step_share=_solve(lambda share: -outcome(at_first, share)[0], -wanted, 0.0, 1.0),
        ),
    )


def _solve(falling: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where a falling function has the value `wanted`, by bisection; `low` or `high` where it never has."""
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return high
