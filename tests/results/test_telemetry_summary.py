"""What summary.json and telemetry.parquet say of what the recorders read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog, make_run
from dlemu.jobs.training.summary import Summary, TelemetrySummary
from dlemu.metrics.findings import Code, Number
from tests.runs import make_job, make_log, with_telemetry


def summary_of(job: TrainingJob, log: RunLog) -> tuple[Summary, TelemetrySummary]:
    summary = make_run(job, log).summary
    assert summary.telemetry is not None
    return summary, summary.telemetry


def device_share(job: TrainingJob, log: RunLog) -> float | None:
    metrics = make_run(job, log).summary.metrics
    device, app = metrics.device_mb_per_second, metrics.app_mb_per_second
    return 100 * device.mean / app.mean if device and app and device.mean and app.mean else None


@pytest.mark.parametrize("skew_ns", [0, 3_000_000_000])
def test_two_hosts_add_up_but_two_views_of_one_machine_do_not(skew_ns: int) -> None:
    job = make_job()
    log = with_telemetry(make_log(job, rank_nodes=(0, 1)))
    log = replace(log, rows=make_log(job, rank_nodes=(0, 1), skew_ns=skew_ns).rows)
    shifted = tuple(replace(host, time_ns=host.time_ns + skew_ns * host.node) for host in log.telemetry)
    assert device_share(job, replace(log, telemetry=shifted)) == pytest.approx(100, rel=0.05)
    twins = tuple(replace(host, boot_id="one") for host in shifted)
    assert device_share(job, replace(log, telemetry=twins)) == pytest.approx(50, rel=0.05)


def kept_readings(log: RunLog, keep: Callable[[NDArray[np.float64]], NDArray[np.bool_]]) -> RunLog:
    """The log without the readings of seconds of training that are not to be kept."""
    begin_ns = log.rows["free_ns"].min()
    hosts = []
    for host in log.telemetry:
        kept = keep((host.time_ns - begin_ns) / 1e9)
        hosts.append(replace(host, which=host.which[kept], time_ns=host.time_ns[kept], value=host.value[kept]))
    return replace(log, telemetry=tuple(hosts))


def test_a_recorder_that_was_killed_or_stopped_is_an_issue_and_its_devices_are_not_known() -> None:
    job = make_job(steps=150)
    log = with_telemetry(make_log(job))
    whole = make_run(job, log).summary
    assert incomplete(whole) == []
    assert whole.metrics.device_mb_per_second is not None
    assert None not in whole.metrics.device_mb_per_second.per_epoch
    cut = kept_readings(log, lambda seconds: seconds < 3)
    killed = make_run(job, replace(cut, journal=cut.journal.noting(lost_recorders=(0,)))).summary
    assert incomplete(killed) == [{"pattern": "telemetry", "host": "node0"}]
    assert any("telemetry of node0 is not complete" in issue for issue in killed.issues)
    assert killed.metrics.device_mb_per_second is not None
    assert killed.metrics.device_mb_per_second.per_epoch == (None, None)


def incomplete(summary: Summary) -> list[dict[str, Number]]:
    return [found.numbers for found in summary.findings if found.code == Code.MEASUREMENT_INCOMPLETE]
