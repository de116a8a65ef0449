"""How what a probe of the workload's own pattern got becomes what a prediction is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from dlemu.emulator.job import Job
from dlemu.prediction.batches import bytes_by_file
from dlemu.prediction.calibration import (
    LEAST_DECODE_SHARE,
    Calibration,
    Reads,
    half_width_percent,
    work_quantiles,
)
from dlemu.prediction.curve import CurvePoint, flat, smoothed
from dlemu.prediction.event_model import HostCosts
from dlemu.probing.pattern import Level, LoaderCosts

FULL = 0.95
"""Share of the most that a level gave from which on it tells of the storage's whole speed."""
BESIDE = 4
"""Readers at a time that tell how much single reads differ."""
STRAIGHT = 0.9
"""Share of their number times one reader's speed that readers get who do not yet wait for each other."""


def calibrate_from_levels(
    job: Job, levels: Sequence[Level], costs: LoaderCosts | None, *, cores: float, folder: str
) -> Calibration:
    """Return what levels of rising readers say; the first must be of one reader."""
    alone = levels[0]
    measured = tuple(CurvePoint(readers=level.readers, mb_per_second=level.mb_per_second) for level in levels)
    curve = smoothed(measured, [len(level.rows) for level in levels])
    top = max(levels, key=lambda level: level.mb_per_second)
    apart = [
        level
        for level, point in zip(levels, curve, strict=True)
        if point.mb_per_second >= STRAIGHT * point.readers * curve[0].mb_per_second
    ]
    rows = alone.rows
    took = (rows["end_ns"] - rows["begin_ns"]).sum()
    decodes = rows["decode_ns"].sum() >= LEAST_DECODE_SHARE * took
    if decodes:  # of a reader's time only that in reads is the storage's
        busy = 1 - float(rows["decode_ns"].sum() / took)
        curve = tuple(CurvePoint(readers=point.readers, mb_per_second=point.mb_per_second / busy) for point in curve)
    samples = int(rows["samples"].sum())
    full = [level for level in levels if level.mb_per_second >= FULL * top.mb_per_second]
    known = next((level for level in levels if level.readers >= max(BESIDE, apart[-1].readers)), levels[-1])
    law = float(bytes_by_file(job.workload.dataset).mean())
    sample_bytes = float(rows["app_bytes"].sum()) / samples
    everything = sum(int(level.rows["app_bytes"].sum()) for level in levels) / sum(
        int(level.rows["samples"].sum()) for level in levels
    )
    return Calibration(
        source=f"a probe of {folder} with {', '.join(str(level.readers) for level in levels)} readers",
        curve=curve,
        saturated=len(levels) > 1 and top.mb_per_second < 1.2 * levels[-2].mb_per_second,
        half_width_percent=half_width_percent([(_reads(level), flat(level.mb_per_second)) for level in full]),
        work=work_quantiles(_reads(known), known.rows["reader"]),
        samples_per_read=max(1, round(samples / len(rows))),
        sample_bytes=sample_bytes,
        bytes_factor=everything / law if law else 1.0,
        decode_seconds_per_sample=float(np.minimum(rows["decode_ns"], rows["cpu_ns"]).sum() / samples / 1e9)
        if decodes
        else 0.0,
        cores=cores,
        costs=HostCosts() if costs is None else HostCosts(**asdict(costs)),
    )


def _reads(level: Level) -> Reads:
    rows = level.rows
    return Reads(rows["begin_ns"] / 1e9, rows["end_ns"] / 1e9, rows["app_bytes"].astype(float))
