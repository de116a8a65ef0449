"""The size of requests, and what the readers took of the host, as `analyse` publishes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlemu.jobs.training.result import Run, make_run
from dlemu.telemetry import Series
from tests.runs import make_job, make_log, with_telemetry

CPU_SECONDS_PER_GB = 0.2


def run_of(calls_a_batch: int = 8) -> Run:
    """A complete run whose workers took so much CPU for each GB and so many calls for each batch."""
    job = make_job()
    log = make_log(job)
    log.rows["cpu_ns"] = CPU_SECONDS_PER_GB * log.rows["app_bytes"]
    log.rows["read_calls"] = calls_a_batch
    return make_run(job, log)


def test_the_mean_call_is_bytes_over_calls() -> None:
    run = run_of(calls_a_batch=8)
    size = run.summary.metrics.asked_request_bytes
    assert size is not None
    assert size.mean == pytest.approx(run.rows["app_bytes"].sum() / run.rows["read_calls"].sum())
    assert len(size.per_epoch) == 2


def test_the_workers_cpu_is_told_by_gb() -> None:
    assert run_of().summary.metrics.reader_cpu_seconds_per_gb == pytest.approx(CPU_SECONDS_PER_GB)


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
