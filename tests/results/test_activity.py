"""What telemetry adds: use of cores, memory pressure, the devices' queues and bytes, and recorders that were lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dlemu.jobs.training.activity import activity_during, find_hot_drive
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog
from dlemu.jobs.training.summary import Summary
from dlemu.metrics.findings import Code, Number
from dlemu.metrics.limit import Context
from dlemu.telemetry import DeviceFacts, HostTelemetry, Series
from tests.results import handmade
from tests.runs import MS, make_job, make_log, make_run, present, with_telemetry


def host(log: RunLog, node: int, values: dict[tuple[str, str, str], float], **changes: Any) -> HostTelemetry:
    ends = int(log.rows["free_ns"].min()), int(log.rows["met_ns"].max())
    return handmade.host(*ends, node, values, grows=0.0, **changes)


def during(job: TrainingJob, log: RunLog) -> Context:
    return activity_during(make_run(job, log), log.rows)


def cores(idle: float, iowait: float = 0.0) -> dict[tuple[str, str, str], float]:
    return {("cpu", "", "idle_percent"): idle, ("cpu", "", "iowait_percent"): iowait}


DISK = {("block", "nvme0n1", "mean_queue_depth"): 3.0, ("block", "nvme0n1", "busy_percent"): 80.0}
FACTS = (DeviceFacts(probe="block", name="nvme0n1", kind="disk", counted=True),)


def reading(watching: HostTelemetry, series: tuple[str, str, str], values: Any) -> HostTelemetry:
    """Return the host with other values of one series: a number, or a function of the seconds since the first."""
    own = watching.which == watching.series.index(Series(*series))
    changed = watching.value.copy()
    seconds = (watching.time_ns[own] - watching.time_ns[0]) / 1e9
    changed[own] = values(seconds) if callable(values) else values
    return replace(watching, value=changed)


def test_the_busiest_host_and_all_devices_count() -> None:
    job = make_job()
    log = make_log(job, rank_nodes=(0, 1))
    hosts = host(log, 0, cores(80) | DISK, devices=FACTS), host(log, 1, cores(5, 2) | DISK, devices=FACTS)
    activity = during(job, replace(log, telemetry=hosts))
    assert activity.host_busy_percent == pytest.approx(93)
    assert activity.device_depth == pytest.approx(6)
    assert activity.device_busy_percent == pytest.approx(80)
    assert activity.memory_some_percent == 0


def test_readings_are_taken_from_each_hosts_own_training_time() -> None:
    """The second host's ranks train an hour later by its clock: earlier readings there do not count."""
    job = make_job()
    log = make_log(job, rank_nodes=(0, 1))
    first = host(log, 0, DISK, devices=FACTS)
    later = log.rows["rank"] == 1
    for name in ("free_ns", "asked_ns", "started_ns", "finished_ns", "ready_ns", "met_ns"):
        log.rows[name][later] += 3_600_000 * MS
    second = host(log, 1, DISK, devices=FACTS)
    before = second.time_ns < int(log.rows["free_ns"][later].min()) - 100 * MS
    second = replace(second, value=np.where(before, 1000.0, second.value))
    assert during(job, replace(log, telemetry=(first, second))).device_depth == pytest.approx(6)


def test_two_nodes_of_one_machine_share_its_devices() -> None:
    job = make_job()
    log = make_log(job, rank_nodes=(0, 1))
    hosts = tuple(host(log, node, cores(50) | DISK, devices=FACTS, boot_id="same") for node in (0, 1))
    activity = during(job, replace(log, telemetry=hosts))
    assert activity.device_depth == pytest.approx(3)


def test_cpu_time_of_the_run_and_of_other_programs_are_distinguished() -> None:
    """Two ranks of 1 core each on 8 cores, in a container that may use 2.5."""
    job = make_job()
    log = make_log(job)
    watching = host(log, 0, cores(5) | {("process", f"rank {rank}", "cpu_seconds"): 0.0 for rank in (0, 1)})
    for rank in (0, 1):
        watching = reading(watching, ("process", f"rank {rank}", "cpu_seconds"), lambda at: at)
    journal = log.journal.noting(hosts=(replace(log.journal.hosts[0], cpu_limit=2.5),))
    activity = during(job, replace(log, journal=journal, telemetry=(watching,)))
    assert activity.host_busy_percent == pytest.approx(95)
    assert activity.own_busy_percent == pytest.approx(100 * 2 / 8)
    assert activity.cpu_limit_used_percent == pytest.approx(100 * 2 / 2.5)


@pytest.mark.parametrize(("share", "ahead", "named"), [(1.65, 1.0, True), (1.65, 1.6, False), (1.1, 1.0, False)])
def test_device_reads_beyond_the_runs_own_are_attributed_to_others(share: float, ahead: float, named: bool) -> None:
    """The kernel's read-ahead for the run counts as the run's own."""
    job = make_job()
    log = make_log(job)
    log.rows["storage_bytes"] = ahead * log.rows["app_bytes"]
    others = make_run(job, with_telemetry(log, device_share=share)).summary.found(Code.OTHER_PROGRAM_ON_DRIVE)
    wanted = [pytest.approx(100 * (share - ahead) / share, abs=3)] if named else []
    assert [found["percent"] for found in others] == wanted


def test_what_a_stopped_run_had_read_ahead_is_its_own() -> None:
    job = make_job(epochs=1, steps=6)
    log = make_log(job)
    log.rows["storage_bytes"] = log.rows["app_bytes"]
    share = 1 + job.batches_ahead * job.ranks / len(log.rows)
    assert share > 1.3
    for stopped in (None, 6):
        ended = replace(log, journal=log.journal.noting(stopped_after_steps=stopped))
        found = make_run(job, with_telemetry(ended, device_share=share))
        assert bool(found.summary.found(Code.OTHER_PROGRAM_ON_DRIVE)) == (stopped is None)


def test_a_devices_queue_depth_is_taken_while_accelerators_waited() -> None:
    """A drive that was too slow for a moment was busy then; its idle time before and after does not matter."""
    job = make_job(epochs=1)
    log = make_log(job)
    late = np.isin(log.rows["step"], (6, 7))
    log.rows["wait_ns"][late], log.rows["wait_ns"][~late] = 8 * MS, 0
    watching = host(log, 0, DISK, devices=FACTS)
    counted = watching.value.copy()
    begin, end = (int(log.rows["free_ns"][log.rows["step"] == step].min()) for step in (5, 10))
    then = (watching.time_ns > begin) & (watching.time_ns < end)
    counted[then] *= 4
    activity = during(job, replace(log, telemetry=(replace(watching, value=counted),)))
    assert activity.device_depth > 9


def link(name: str, speed: float, received: float) -> dict[tuple[str, str, str], float]:
    return {
        ("network", name, "link_mb_per_second"): speed,
        ("network", name, "received_mb_per_second"): received,
        ("network", name, "sent_mb_per_second"): 5 * received,
    }


def test_the_busiest_interface_of_known_speed_counts() -> None:
    job = make_job()
    log = make_log(job, rank_nodes=(0, 1))
    own = link("eth0", 1000, 250) | link("eth1", 4000, 300) | link("down", 0, 10)
    own |= {("network", "lo", "received_mb_per_second"): 9000.0}
    hosts = [host(log, 0, own), host(log, 1, link("eth0", 1000, 120))]
    assert during(job, replace(log, telemetry=tuple(hosts))).network_percent == pytest.approx(25)
    hosts[1] = host(log, 1, link("eth0", 1000, 700))
    assert during(job, replace(log, telemetry=tuple(hosts))).network_percent == pytest.approx(70)
    slower = reading(hosts[1], ("network", "eth0", "link_mb_per_second"), lambda at: np.where(at < at.max(), 1000, 875))
    assert during(job, replace(log, telemetry=(slower,))).network_percent == pytest.approx(80), "as it was in the end"
    assert during(job, replace(log, telemetry=(host(log, 0, cores(50)),))).network_percent == 0


def temperature(drive: str, celsius: float, limit: float) -> dict[tuple[str, str, str], float]:
    return {("temperature", drive, "celsius"): celsius, ("temperature", drive, "limit_celsius"): limit}


def below(name: str) -> tuple[DeviceFacts, ...]:
    return (DeviceFacts(probe="block", name=name, kind="disk", counted=True),)


@pytest.mark.parametrize(
    ("device", "drive", "celsius", "is_hot"),
    [
        ("sda", "sda", 82.0, True),
        ("sda", "sda", 81.9, False),
        ("nvme1n1", "nvme1", 90.0, True),
        ("nvme10n1", "nvme1", 90.0, False),
    ],
)
def test_a_drive_is_hot_if_it_reaches_its_own_limit(device: str, drive: str, celsius: float, is_hot: bool) -> None:
    job = make_job()
    log = make_log(job)
    watching = host(log, 0, temperature(drive, celsius, 82.0), devices=below(device))
    heat = "temperature", drive, "celsius"
    hotter = reading(watching, heat, lambda at: np.where(np.minimum(at, at.max() - at) < 0.15, 99, celsius))
    found = find_hot_drive(make_run(job, replace(log, telemetry=(hotter,))), log.rows)
    hot = {"pattern": "hot_drive", "drive": drive, "celsius": celsius, "limit_celsius": 82.0}
    assert (found and found.numbers) == (hot if is_hot else None)


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


def test_a_recorder_that_was_killed_or_stopped_is_an_issue_and_its_devices_are_not_known() -> None:
    job = make_job(steps=150)
    log = with_telemetry(make_log(job))
    whole = make_run(job, log).summary
    assert incomplete(whole) == []
    assert None not in present(whole.metrics.device_mb_per_second).per_epoch
    (seen,) = log.telemetry
    first = seen.time_ns < log.rows["free_ns"].min() + 3_000 * MS
    lost = replace(seen, which=seen.which[first], time_ns=seen.time_ns[first], value=seen.value[first])
    journal = log.journal.noting(lost_recorders=(0,))
    killed = make_run(job, replace(log, telemetry=(lost,), journal=journal)).summary
    assert incomplete(killed) == [{"pattern": "telemetry", "host": "node0"}]
    assert any("telemetry of node0 is not complete" in issue for issue in killed.issues)
    assert present(killed.metrics.device_mb_per_second).per_epoch == (None, None)


def incomplete(summary: Summary) -> list[dict[str, Number]]:
    return [found.numbers for found in summary.findings if found.code == Code.MEASUREMENT_INCOMPLETE]
