"""From a probe's levels to a storage that can be simulated: what is pooled, what is believed, what is the host's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlemu.jobs.training.pattern import LoaderCosts
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.curve import (
    CurvePoint,
    smoothed,
)
from dlemu.jobs.training.prediction.from_probe import calibrate_from_levels
from dlemu.results.levels import READ_DTYPE, Level
from tests.runs import SAMPLE_BYTES, make_job

MS = 1_000_000


def level(
    readers: int,
    mb_per_second: float,
    half_width_percent: float = 0.1,
    *,
    seconds: float = 2.0,
    reads: int = 40,
    **rows: Any,
) -> Level:
    """Reads of 4 samples in 10 ms each, one after another by each reader; `rows` change their columns."""
    made = np.zeros(reads, READ_DTYPE)
    number, made["reader"] = np.arange(reads) // readers, np.arange(reads) % readers
    made["begin_ns"] = number * 10 * MS
    made["end_ns"] = made["begin_ns"] + 10 * MS
    made["samples"], made["app_bytes"] = 4, 4 * SAMPLE_BYTES
    for name, value in rows.items():
        made[name] = value
    return Level(readers, seconds, made, mb_per_second, half_width_percent, 0.0, False)


def of(*levels: Level, costs: LoaderCosts | None = None, **words: float) -> Calibration:
    return calibrate_from_levels(make_job(ranks=1), levels, costs, cores=3.0, folder="/data", **words)


def points(calibration: Calibration) -> dict[int, float]:
    return {point.readers: point.mb_per_second for point in calibration.curve}


# curves


def curve(**points: float) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(readers=int(name[1:]), mb_per_second=value) for name, value in points.items())


def test_a_curve_without_what_chance_made_of_it() -> None:
    """What each reader gets never rises and what all get never falls, but where more readers thrash."""
    rising = smoothed(curve(r1=100, r2=220, r4=300), [10, 30, 30])
    assert [point.mb_per_second for point in rising] == pytest.approx([107.5, 215, 300])
    falling = smoothed(curve(r1=100, r2=200, r4=180), [10, 10, 30])
    assert [point.mb_per_second for point in falling] == pytest.approx([100, 185, 185])
    thrashing = curve(r1=100, r2=200, r4=139, r8=150)
    assert smoothed(thrashing, [10, 10, 10, 10]) == thrashing
    right = curve(r1=100, r2=190, r4=250)
    assert smoothed(right, [1, 1, 1]) == right


# levels


@pytest.mark.parametrize(
    ("speeds", "saturated"),
    [({1: 100, 2: 119}, True), ({1: 100, 2: 121}, False), ({1: 100, 2: 190, 4: 200}, True), ({1: 100}, False)],
)
def test_a_storage_has_no_more_where_twice_the_readers_got_little_more(
    speeds: dict[int, float], saturated: bool
) -> None:
    assert of(*(level(readers, speed) for readers, speed in speeds.items())).saturated == saturated


def test_time_that_a_reader_decodes_is_not_the_storages() -> None:
    """4 of 10 ms, of which it had a core for 3."""
    found = of(level(1, 60, decode_ns=4 * MS, cpu_ns=3 * MS))
    assert points(found) == pytest.approx({1: 100})
    assert found.decode_seconds_per_sample == pytest.approx(0.003 / 4)
    slow = of(level(1, 60, decode_ns=4 * MS, cpu_ns=9 * MS))
    assert slow.decode_seconds_per_sample == pytest.approx(0.004 / 4)
    little = of(level(1, 60, decode_ns=4 * MS // 10, cpu_ns=MS))
    assert (points(little), little.decode_seconds_per_sample) == ({1: 60}, 0.0)
