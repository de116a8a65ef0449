"""Computes what the dataset's block devices delivered in each epoch, from the telemetry recorder's readings."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.rates import Mean, all_known, by_epoch, known, training_ns
from dlemu.metrics.rows import Rows, StepTable, in_order, sum_of

_MAX_MISSED = 0.05
"""With readings missing for a larger share of an epoch, a device has no figure: it could be wrong by that share."""


class Delivered(NamedTuple):
    """What one device delivered to one host over time."""

    ranks: tuple[int, ...]
    """The ranks of that host: their stamps are on the same clock."""
    time_ns: NDArray[np.int64]
    rate: NDArray[np.float64]
    """MB/s or reads/s: for each time, the mean since the time before."""


def device_metrics(rows: Rows, devices: list[Delivered]) -> tuple[Mean, Mean]:
    """Return all devices' MB/s, and their bytes as a percentage of the application's; None without devices."""
    epochs = by_epoch(rows)
    megabytes = [sum(map(_delivered_total, [part] * len(devices), devices)) if devices else np.nan for part in epochs]
    seconds = [training_ns(part) / 1e9 for part in epochs]
    app_megabytes = [float(sum_of(part, "app_bytes")) / 1e6 for part in epochs]
    rate = Mean(mean=known(_ratio(sum(megabytes), sum(seconds))), per_epoch=all_known(map(_ratio, megabytes, seconds)))
    share = Mean(
        mean=known(100 * _ratio(sum(megabytes), sum(app_megabytes))),
        per_epoch=all_known(100 * _ratio(mb, app_mb) for mb, app_mb in zip(megabytes, app_megabytes, strict=True)),
    )
    return rate, share


def device_request_kib(rows: Rows, megabytes: list[Delivered], requests: list[Delivered]) -> Mean:
    """Return the mean size of the devices' reads, KiB, from their MB/s and reads/s; None if they read nothing."""

    def mean_kib(part: StepTable) -> float:
        mb, reads = (sum(_delivered_total(part, device) for device in devices) for devices in (megabytes, requests))
        return _ratio(mb * 1e6 / 1024, reads)

    epochs = by_epoch(rows)
    weights = [sum(_delivered_total(part, device) for device in requests) for part in epochs]
    values = [mean_kib(part) for part in epochs]
    counted = [(value, weight) for value, weight in zip(values, weights, strict=True) if math.isfinite(value * weight)]
    mean = _ratio(sum(value * weight for value, weight in counted), sum(weight for _, weight in counted))
    return Mean(mean=known(mean), per_epoch=all_known(values))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _delivered_total(rows: Rows, device: Delivered) -> float:
    """Return a device's MB or reads in an epoch, from the readings around it; NaN if too much is missing."""
    own = in_order(rows).of("rank", device.ranks)
    if not len(own):
        return float("nan")
    return delivered_between(device.time_ns, device.rate, int(own["free_ns"].min()), int(own["met_ns"].max()))


def delivered_between(time_ns: NDArray[np.int64], rate: NDArray[np.float64], begin_ns: int, end_ns: int) -> float:
    """Return the MB (of rates in MB/s) between the readings around; NaN if more than `_MAX_MISSED` is missing."""
    first = max(0, int(np.searchsorted(time_ns, begin_ns, side="right")) - 1)
    last = int(np.searchsorted(time_ns, end_ns))
    time_ns, rate = time_ns[first : last + 1], rate[first : last + 1]
    if not len(time_ns):
        return float("nan")
    missed_ns = max(0, int(time_ns[0]) - begin_ns) + max(0, end_ns - int(time_ns[-1]))
    return float("nan") if missed_ns > _MAX_MISSED * (end_ns - begin_ns) else _integral(time_ns, rate)


def mean_between(time_ns: NDArray[np.int64], value: NDArray[np.float64], begin_ns: int, end_ns: int) -> float:
    """Return the time-weighted mean of the readings between two moments; NaN for fewer than two readings."""
    within = (time_ns >= begin_ns) & (time_ns <= end_ns)
    times, values = time_ns[within], value[within]
    return _integral(times, values) / ((times[-1] - times[0]) / 1e9) if len(times) > 1 else float("nan")


def _integral(time_ns: NDArray[np.int64], value: NDArray[np.float64]) -> float:
    """Return the sum of each reading x seconds since the reading before it; NaN for fewer than two readings."""
    return float((value[1:] * np.diff(time_ns)).sum() / 1e9) if len(time_ns) > 1 else float("nan")
