"""Device bytes of an epoch from rates between readings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlemu.metrics.cache import Delivered, device_metrics, device_request_kib
from tests.runs import make_job, make_log

MB = 1e6


def rows_and_ends(**settings: Any) -> tuple[Any, list[tuple[int, int]]]:
    rows = make_log(make_job(**settings)).rows
    epochs = [rows[rows["epoch"] == epoch] for epoch in (1, 2)]
    return rows, [(int(part["free_ns"].min()), int(part["met_ns"].max())) for part in epochs]


def device(readings: list[tuple[int, float]]) -> Delivered:
    """A device from (time, MB in all up to then)."""
    times, total = (np.array(column) for column in zip(*readings, strict=True))
    rates = np.diff(total) / (np.diff(times) / 1e9)
    return Delivered((0, 1), times.astype(np.int64), np.concatenate([[0.0], rates]))


def test_bytes_before_between_and_after_epochs_are_left_out() -> None:
    rows, ends = rows_and_ends()
    app_mb = [rows[rows["epoch"] == epoch]["app_bytes"].sum() / MB for epoch in (1, 2)]
    (begin, end), (begin_2, end_2) = ends
    first = device([(begin - 500, 0), (begin - 2, 70), (end + 1, 70 + app_mb[0]), (begin_2, 900 + app_mb[0])])
    _, share = device_metrics(rows, [first])
    assert share.per_epoch[0] == pytest.approx(100)
    assert share.per_epoch[1] is None, "a recorder that was lost knows nothing of what came after"
    first = device([(begin - 2, 0), (end + 1, app_mb[0]), (begin_2, 900 + app_mb[0]), (end_2 + 1, 900 + app_mb[0])])
    _, share = device_metrics(rows, [first])
    assert share.per_epoch == pytest.approx((100, 0), abs=1e-6)
    both = device([(begin - 500, 0), (begin, 70), (end + 5, 70), (begin_2, 70), (end_2, 70 + app_mb[1] / 2)])
    _, share = device_metrics(rows, [first, both])
    assert share.per_epoch == pytest.approx((100, 50))
    assert share.mean == pytest.approx(75)


def test_the_mean_request_is_of_all_devices_and_weighs_by_their_reads() -> None:
    rows, ((begin, end), (begin_2, end_2)) = rows_and_ends()
    times = [begin - 2, end + 1, begin_2, end_2 + 1]

    def grown(first: float, between: float, second: float) -> Delivered:
        total = np.cumsum([0, first, between, second])
        return device(list(zip(times, total.tolist(), strict=True)))

    mib = 1.048576
    megabytes = [grown(100 * mib, 77, 30 * mib), grown(20 * mib, 0, 10 * mib)]
    reads = [grown(100, 5000, 120), grown(20, 0, 40)]
    size = device_request_kib(rows, megabytes, reads)
    assert size.per_epoch == pytest.approx((1024, 256))
    assert size.mean == pytest.approx(1024 * 160 / 280)
    assert device_request_kib(rows, [], []).mean is None
    assert device_request_kib(rows, [grown(0, 0, 0)], [grown(0, 0, 0)]).mean is None
