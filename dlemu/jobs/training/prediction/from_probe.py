"""How what a probe of the workload's own pattern got becomes what a prediction is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dlemu.jobs.training.pattern import LoaderCosts
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.batches import bytes_by_file
from dlemu.jobs.training.prediction.calibration import (
    LEAST_DECODE_SHARE,
    MOST_HALF_WIDTH,
    Calibration,
    Reads,
    work_quantiles,
)
from dlemu.jobs.training.prediction.curve import Curve, CurvePoint, smoothed
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.results.levels import Level, ReadRows

BESIDE = 4
"""Readers at a time that show how much single reads differ, where one alone gets all that the storage has."""
STRAIGHT = 0.9
"""Share of their number times one reader's speed that readers get who do not yet wait for each other."""
MORE = 1.2
"""Times what half the readers got from which on twice as many might get more still."""


@dataclass(frozen=True, eq=False)
class _Measured:
    """All that was measured with so many readers."""

    readers: int
    rows: ReadRows
    mb_per_second: float
    half_width_percent: float
    """Of the 95 % interval; not less than what one measurement differed from all of them, which it may do again."""
    seconds: float


def calibrate_from_levels(
    job: TrainingJob,
    levels: Sequence[Level],
    costs: LoaderCosts | None,
    *,
    cores: float,
    folder: str,
    busy_cores: float = 0.0,
) -> Calibration:
    """Return what levels of readers say; the first must be of one reader, and a number may be there several times."""
    found = _pooled(levels)
    alone = found[0]
    curve = smoothed(_alike(found), [len(level.rows) for level in found])
    top = max(found, key=lambda level: level.mb_per_second)
    apart = [
        level
        for level, point in zip(found, curve, strict=True)
        if point.mb_per_second >= STRAIGHT * point.readers * curve[0].mb_per_second
    ]
    rows = alone.rows
    took = (rows["end_ns"] - rows["begin_ns"]).sum()
    decodes = rows["decode_ns"].sum() >= LEAST_DECODE_SHARE * took
    if decodes:  # of a reader's time only that in reads is the storage's
        busy = 1 - float(rows["decode_ns"].sum() / took)
        curve = tuple(CurvePoint(readers=point.readers, mb_per_second=point.mb_per_second / busy) for point in curve)
    samples = int(rows["samples"].sum())
    several = [level for level in apart if level.readers > 1]
    known = several or [next((level for level in found if level.readers >= BESIDE), found[-1])]
    half = [level for level in found if 2 * level.readers <= found[-1].readers]
    law = float(bytes_by_file(job.workload.dataset).mean())
    sample_bytes = float(rows["app_bytes"].sum()) / samples
    everything = sum(int(level.rows["app_bytes"].sum()) for level in levels) / sum(
        int(level.rows["samples"].sum()) for level in levels
    )
    return Calibration(
        source=f"a probe of {folder} with {', '.join(str(level.readers) for level in found)} readers",
        curve=curve,
        saturated=bool(half) and top.mb_per_second < MORE * half[-1].mb_per_second,
        half_width_percent=_surest(found),
        work=work_quantiles([(_reads(level), level.rows["reader"]) for level in known]),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=sample_bytes,
        bytes_factor=everything / law if law else 1.0,
        decode_seconds_per_sample=float(np.minimum(rows["decode_ns"], rows["cpu_ns"]).sum() / samples / 1e9)
        if decodes
        else 0.0,
        cores=cores,
        busy_cores=busy_cores,
        costs=HostCosts() if costs is None else HostCosts(**asdict(costs)),
    )


def _pooled(levels: Sequence[Level]) -> list[_Measured]:
    """Return one measurement of each number of readers, by rising number."""
    found = []
    for readers in sorted({level.readers for level in levels}):
        same = [level for level in levels if level.readers == readers]
        seconds = np.array([level.seconds for level in same])
        speeds = np.array([level.mb_per_second for level in same])
        widths = np.array([min(level.half_width_percent, MOST_HALF_WIDTH) for level in same])
        mean = float(speeds @ seconds / seconds.sum())
        within = math.sqrt(float(((widths * seconds) ** 2).sum())) / float(seconds.sum())
        apart = 100 * np.abs(speeds / mean - 1) * np.sqrt(seconds / seconds.sum())
        found.append(
            _Measured(
                readers=readers,
                rows=np.concatenate([level.rows for level in same]),
                mb_per_second=mean,
                half_width_percent=max(within, float(apart.max())),
                seconds=float(seconds.sum()),
            )
        )
    return found


def _alike(found: Sequence[_Measured]) -> Curve:
    """Return what was measured; numbers of readers that each got the same, as far as is known, share what they know.

    Readers who do not yet wait for each other each get what one alone would. From one reader up, a number is taken to
    be of these as long as its mean lies within the interval of its difference to that of the numbers before.
    """
    speed, width, reads, alike = found[0].mb_per_second, found[0].half_width_percent, len(found[0].rows), 1
    for level in found[1:]:
        each = level.mb_per_second / level.readers
        if abs(100 * (each / speed - 1)) > math.hypot(width, level.half_width_percent):
            break
        together = reads + len(level.rows)
        speed = (speed * reads + each * len(level.rows)) / together
        width = math.hypot(width * reads, level.half_width_percent * len(level.rows)) / together
        reads, alike = together, alike + 1
    return tuple(
        CurvePoint(readers=level.readers, mb_per_second=speed * level.readers if place < alike else level.mb_per_second)
        for place, level in enumerate(found)
    )


def _surest(found: Sequence[_Measured]) -> float:
    """Return the half width of the level that was measured longest: the one that matters."""
    return max(found, key=lambda level: level.seconds).half_width_percent


def _reads(level: _Measured) -> Reads:
    rows = level.rows
    return Reads(rows["begin_ns"] / 1e9, rows["end_ns"] / 1e9, rows["app_bytes"].astype(float))
