"""What time stamps of blocks alone give: samples/s and the rules' AU as rank 0 saw them, and bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dlemu.mlperf.audit.logs import Logs
from dlemu.mlperf.audit.printed import Printed
from dlemu.mlperf.audit.recompute import NOTHING, Formula, Recomputed
from dlemu.mlperf.audit.setup import Setup
from dlemu.mlperf.audit.spans import STAMP_SECONDS, BlockKey, Span


@dataclass(frozen=True)
class _Epoch:
    """One epoch's blocks together, in seconds."""

    seconds: float
    longest_seconds: float


def from_blocks(setup: Setup, printed: Printed, logs: Logs) -> Recomputed:
    """Return what the time stamps give. Steps are those that the settings plan: stamps do not tell how many ran."""
    spans = logs.spans.get(min(logs.spans, default=0), {})
    epochs = _by_epoch(spans)
    ranks, steps = printed.accelerators, planned_steps(setup, printed)
    if not epochs:
        return NOTHING
    if ranks is None or steps is None or setup.batch_size is None:
        return Recomputed(basis="blocks", epochs=len(epochs), steps_per_epoch=steps)
    samples, c = steps * setup.batch_size * ranks, setup.computation_seconds
    rates = tuple(samples / epoch.seconds for epoch in epochs)
    whole = c is not None and len(spans) == len(epochs)  # DLIO drops the first step of each block
    bounded = whole and not setup.drawn  # a drawn step may take less than the mean
    excluded = setup.exclude_start_steps + max(1, setup.exclude_end_steps)
    return Recomputed(
        basis="blocks",
        epochs=len(epochs),
        steps_per_epoch=steps,
        formulas={} if logs.measured_compute else {"dlio_v1": Formula(samples_per_second_by_epoch=rates)},
        au_rules_percent=None if c is None else 100 * steps * c * len(epochs) / sum(epoch.seconds for epoch in epochs),
        au_bounds_percent=_au_bounds(epochs, steps, c, 2 if logs.measured_compute else 1) if bounded and c else None,
        rate_bounds=_rate_bounds(epochs, _Plan(steps, c, setup.batch_size, ranks, excluded), printed, logs)
        if bounded and c
        else None,
        loss_percent=_implied(epochs, steps, c, setup.batch_size * ranks, printed, logs) if whole and c else {},
    )


def _by_epoch(spans: Mapping[BlockKey, Span]) -> list[_Epoch]:
    found = []
    for number in sorted({epoch for epoch, _ in spans}):
        parts = [span for (epoch, _), span in spans.items() if epoch == number]
        found.append(_Epoch(sum(one.seconds for one in parts), sum(one.longest_seconds for one in parts)))
    return found


def planned_steps(setup: Setup, printed: Printed) -> int | None:
    """Return the steps of an epoch: floor(samples / (batch x ranks)), as far as total_training_steps allows."""
    files, samples = printed.num_files or setup.num_files, printed.samples_per_file or setup.samples_per_file
    if files is None or samples is None or setup.batch_size is None or printed.accelerators is None:
        return None
    steps = files * samples // (setup.batch_size * printed.accelerators)
    return min(steps, setup.total_training_steps or steps) or None


def _au_bounds(epochs: list[_Epoch], steps: int, c: float, dropped: int) -> tuple[float, float]:
    """Return the least and the most that AU can be: the dropped steps took from c each to all that the rest leaves.

    `dropped` is the most that a formula in question drops: the first step, since 2.x perhaps the last one too.
    """
    least = [100 * max(0, steps - dropped) * c / max(epoch.longest_seconds - dropped * c, c) for epoch in epochs]
    return math.fsum(least) / len(least), 100.0


@dataclass(frozen=True)
class _Plan:
    """What each epoch is made of."""

    steps: int
    seconds: float
    """Configured computation of a step."""
    batch_size: int
    ranks: int
    excluded_steps: int
    """The most that a formula since 2.x leaves out."""

    @property
    def kept_steps(self) -> int:
        """The fewest steps that count since 2.x."""
        return max(1, self.steps - self.excluded_steps)


def _rate_bounds(epochs: list[_Epoch], plan: _Plan, printed: Printed, logs: Logs) -> tuple[float, float]:
    """Return the least and the most samples/s that the files allow.

    The least: the blocks of all ranks whose stamps are not known took as long as they can have. The most: no rank
    waited in any step, nor more than the printed AU leaves (samples/s are a concave function of a rank's AU, so the
    mean AU gives the most).
    """
    aus = printed.au_by_epoch if len(printed.au_by_epoch) == len(epochs) else [100.0] * len(epochs)
    bounds = _bounds_since_v2 if logs.measured_compute else _bounds_v1
    found = [bounds(epoch, plan, min(max(au, 0.0), 100.0) / 100) for epoch, au in zip(epochs, aus, strict=True)]
    least, most = (math.fsum(side) / len(found) for side in zip(*found, strict=True))
    return least, most


def _bounds_v1(epoch: _Epoch, plan: _Plan, au: float) -> tuple[float, float]:
    """N x batch / T of each rank: T is known of rank 0, of the others it is at least that of all their steps."""
    samples, others, c = plan.steps * plan.batch_size, plan.ranks - 1, plan.seconds
    least = 1 / (epoch.seconds + STAMP_SECONDS) + others / max(epoch.longest_seconds, epoch.seconds)
    busy = plan.steps * c
    most = 1 / max(epoch.seconds - STAMP_SECONDS, busy) + others / busy
    by_au = plan.ranks * au / ((plan.steps - 1) * c + c * au)
    return samples * least, samples * (min(most, by_au) if au and plan.steps > 1 else most)


def _bounds_since_v2(epoch: _Epoch, plan: _Plan, au: float) -> tuple[float, float]:
    """(N - 2) x batch / (T - dropped steps) of each rank; a step takes c at least."""
    samples, counted = max(0, plan.steps - 2) * plan.batch_size * plan.ranks, plan.kept_steps * plan.seconds
    return samples / max(epoch.longest_seconds, counted), samples / counted * (au or 1.0)


def _implied(
    epochs: list[_Epoch], steps: int, c: float, samples: int, printed: Printed, logs: Logs
) -> dict[str, float]:
    """Return the shares that follow if what was printed is right: the first step's, and all others' together."""
    au, rates = printed.au_by_epoch, printed.samples_per_second_by_epoch
    if not len(au) == len(rates) == len(epochs) or min(*au, *rates) <= 0:
        return {}
    if logs.measured_compute:
        counted = [max(0, steps - 2) * samples / rate for rate in rates]
    else:
        counted = [100 * (steps - 1) * c / one for one in au]
    total, kept = sum(epoch.seconds for epoch in epochs), math.fsum(counted)
    credited = math.fsum(one * seconds / 100 for one, seconds in zip(au, counted, strict=True))
    last_dropped = credited < (steps - 1) * c * len(epochs) * (1 - 1e-6)  # no step computes for less than c
    first = total - kept - c * len(epochs) * (2 if last_dropped else 1)
    computed = c * steps * len(epochs)
    return {"first_step": 100 * first / total, "all_other": 100 * (total - computed - first) / total}
