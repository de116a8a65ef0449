"""The size of requests that the device served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlemu.jobs.training.result import make_run
from dlemu.telemetry import Series
from tests.runs import make_job, make_log, with_telemetry


def test_what_the_device_served_is_megabytes_over_reads() -> None:
    job = make_job()
    log = with_telemetry(make_log(job))
    (host,) = log.telemetry
    megabytes, _ = host.series
    reads = Series("block", "nvme0n1", "reads_per_second")  # 40 of them, where there were watts
    run = make_run(job, replace(log, telemetry=(replace(host, series=(megabytes, reads)),)))
    rates = host.readings(*megabytes)[1]
    assert run.summary.metrics.device_request_kib is not None
    assert run.summary.metrics.device_request_kib.mean == pytest.approx(rates.mean() * 1e6 / 1024 / 40)
    unseen = make_run(job, log).summary.metrics.device_request_kib
    assert unseen is not None
    assert unseen.mean is None
