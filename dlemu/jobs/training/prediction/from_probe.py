"""Calibration from a probe of the workload's own access pattern (`dlemu.jobs.training.pattern`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dlemu.jobs.training.pattern import Level, LoaderCosts, ReadRows
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.batches import bytes_by_file
from dlemu.jobs.training.prediction.calibration import (
    MAX_HALF_WIDTH_PERCENT,
    MIN_DECODE_SHARE,
    Calibration,
    Reads,
    work_quantiles,
)
from dlemu.jobs.training.prediction.curve import Curve, CurvePoint, scaled, smoothed
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.metrics.demand import row_group_reads

MIN_PARALLEL_READERS = 4
"""Readers of the level that shows how much single reads differ, where one reader alone gets the full throughput."""
SCALING_SHARE = 0.9
"""Readers do not slow each other down if together they get this share of their number times one reader's throughput."""
UNSATURATED_GAIN = 1.2
"""A storage that gives this many times the throughput of half the readers might give even more to more readers."""


@dataclass(frozen=True, eq=False)
class _Measured:
    """All levels with the same number of readers as one measurement."""

    readers: int
    rows: ReadRows
    mb_per_second: float
    half_width_percent: float
    """Half width of the 95 % interval, but at least the difference of a single level from the mean of all."""
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
    """Return the calibration from a probe's levels, one or more for each number of readers, which begin at one."""
    measured = _merged(levels)
    curve = smoothed(_scaling_pooled(measured), [len(level.rows) for level in measured])
    highest_mb_per_second = max(level.mb_per_second for level in measured)
    scaling = [
        level
        for level, point in zip(measured, curve, strict=True)
        if point.mb_per_second >= SCALING_SHARE * point.readers * curve[0].mb_per_second
    ]
    rows = measured[0].rows  # of one reader
    total_ns = (rows["end_ns"] - rows["begin_ns"]).sum()
    decodes = rows["decode_ns"].sum() >= MIN_DECODE_SHARE * total_ns
    if decodes:  # the curve is of the storage, so decoding does not count as a reader's time
        curve = scaled(curve, 1 / (1 - float(rows["decode_ns"].sum() / total_ns)))
    samples = int(rows["samples"].sum())
    parallel = [level for level in scaling if level.readers > 1]
    parallel = parallel or [next((level for level in measured if level.readers >= MIN_PARALLEL_READERS), measured[-1])]
    half = [level for level in measured if 2 * level.readers <= measured[-1].readers]
    planned_sample_bytes = float(bytes_by_file(job.workload.dataset).mean())
    sample_bytes = float(rows["app_bytes"].sum()) / samples
    all_sample_bytes = sum(int(level.rows["app_bytes"].sum()) for level in levels) / sum(
        int(level.rows["samples"].sum()) for level in levels
    )
    return Calibration(
        source=f"a probe of {folder} with {', '.join(str(level.readers) for level in measured)} readers",
        curve=curve,
        saturated=bool(half) and highest_mb_per_second < UNSATURATED_GAIN * half[-1].mb_per_second,
        half_width_percent=max(measured, key=lambda level: level.seconds).half_width_percent,  # the repeated level
        work=work_quantiles(
            [
                (Reads(own["begin_ns"] / 1e9, own["end_ns"] / 1e9, own["app_bytes"].astype(float)), own["reader"])
                for own in (level.rows for level in parallel)
            ]
        ),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=sample_bytes,
        bytes_factor=row_group_reads(job.workload) * (all_sample_bytes / (planned_sample_bytes or all_sample_bytes)),
        decode_seconds_per_sample=float(np.minimum(rows["decode_ns"], rows["cpu_ns"]).sum() / samples / 1e9)
        if decodes
        else 0.0,
        cores=cores,
        busy_cores=busy_cores,
        costs=HostCosts() if costs is None else HostCosts(**asdict(costs)),
    )


def _merged(levels: Sequence[Level]) -> list[_Measured]:
    """Return one measurement for each number of readers, by rising number; levels are weighted by their duration."""
    measured = []
    for readers in sorted({level.readers for level in levels}):
        same = [level for level in levels if level.readers == readers]
        seconds = np.array([level.seconds for level in same])
        speeds = np.array([level.mb_per_second for level in same])
        widths = np.array([level.half_width_percent for level in same])
        mean = float(speeds @ seconds / seconds.sum())
        within = math.sqrt(float(((widths * seconds) ** 2).sum())) / float(seconds.sum())
        between = 100 * np.abs(speeds / mean - 1) * np.sqrt(seconds / seconds.sum())
        measured.append(
            _Measured(
                readers=readers,
                rows=np.concatenate([level.rows for level in same]),
                mb_per_second=mean,
                half_width_percent=min(MAX_HALF_WIDTH_PERCENT, max(within, float(between.max()))),
                seconds=float(seconds.sum()),
            )
        )
    return measured


def _scaling_pooled(measured: Sequence[_Measured]) -> Curve:
    """Return the curve; levels are pooled until the throughput per reader differs significantly from theirs."""
    speed, width = measured[0].mb_per_second, measured[0].half_width_percent
    reads, count = len(measured[0].rows), 1
    for level in measured[1:]:
        per_reader = level.mb_per_second / level.readers
        if abs(100 * (per_reader / speed - 1)) > math.hypot(width, level.half_width_percent):
            break
        total = reads + len(level.rows)
        speed = (speed * reads + per_reader * len(level.rows)) / total
        width = math.hypot(width * reads, level.half_width_percent * len(level.rows)) / total
        reads, count = total, count + 1
    return tuple(
        CurvePoint(readers=level.readers, mb_per_second=speed * level.readers if place < count else level.mb_per_second)
        for place, level in enumerate(measured)
    )
