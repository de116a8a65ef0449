"""How busy devices, cores, memory and network were during training, and the power used, from telemetry."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.summary import HostDevice, TelemetrySummary
from dlemu.metrics.cache import Delivered, mean_between
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Finding
from dlemu.metrics.limit import Context
from dlemu.metrics.loss import waits_of
from dlemu.metrics.rates import Window, Windows, known, mean_within
from dlemu.metrics.rows import Rows, StepTable, as_table
from dlemu.results.host_activity import HostActivity, devices_of, highest
from dlemu.telemetry import HostTelemetry


def activity_during(run: MeasuredTraining, rows: Rows) -> Context:
    """Return the activity of hosts during the epochs of these rows, and of devices while accelerators waited."""
    rows, journal = as_table(rows), run.facts.journal
    epochs_by_host = _epochs_of_hosts(run, rows)
    waits_by_host: list[tuple[HostTelemetry, Windows]] = [  # when the host's accelerators waited, on its clock
        (host, np.stack(waits_of(rows.of("rank", ranks_on(run, host))), axis=1)) for host in run.telemetry
    ]
    all_waited = all(len(windows) for _, windows in waits_by_host)
    in_epochs, in_waits = HostActivity(epochs_by_host), HostActivity(waits_by_host if all_waited else epochs_by_host)
    core_use: list[tuple[float, float]] = []  # of each host: percent of its cores used by all programs, and by this run
    limit_percents = []  # of each host: the CPU limit's used share
    for (host, epochs), busy_percent in zip(epochs_by_host, in_epochs.busy_percents, strict=True):
        cores, facts = _cores_used(host, epochs), journal.hosts[host.node]
        limit_percents.append(100 * cores / (facts.cpu_limit or math.inf))
        if not math.isnan(busy_percent):
            # CPU times of processes are rounded to ticks of 10 ms (proc(5)), so their sum may exceed the busy time.
            core_use.append((busy_percent, min(100 * cores / facts.cpu_count, busy_percent)))
    busy_percent, own_percent = max(core_use, default=(math.nan, math.nan))  # of the host with the busiest cores
    limit_used_percent = highest(limit_percents)
    if journal.cpu_seconds and journal.ended_ns:  # the CPU time of the run's processes replaces what telemetry lacks
        core_percent = 100e9 * sum(journal.cpu_seconds) / max(1, journal.ended_ns - journal.started_ns)
        if math.isnan(busy_percent):
            usable = sum(min(host.cpu_usable, host.cpu_limit or math.inf) for host in journal.hosts)
            busy_percent = core_percent / usable
        if limit_used_percent is None:
            limit_used_percent = core_percent / sum(host.cpu_limit or math.inf for host in journal.hosts)
    depths, device_busy = (in_waits.block_device_means(name) for name in ("mean_queue_depth", "busy_percent"))
    return Context(
        host_busy_percent=busy_percent,
        own_busy_percent=own_percent,
        cpu_limit_used_percent=limit_used_percent or 0.0,
        cpu_throttled_percent=highest(in_epochs.means("cpu", "throttled_percent")) or 0.0,
        memory_some_percent=highest(in_epochs.means("pressure", "memory_some_percent")) or 0.0,
        network_percent=in_epochs.link_percent("received_mb_per_second") or 0.0,
        device_depth=sum(depths) if depths and device_busy else math.nan,
        device_busy_percent=max(device_busy) if depths and device_busy else math.nan,
    )


def _epochs_of_hosts(run: MeasuredTraining, rows: StepTable) -> list[tuple[HostTelemetry, Windows]]:
    """Return each host with the start and end of each epoch of its ranks, ns on its clock."""
    return [
        (host, [_span_ns(epoch) for epoch in rows.of("rank", ranks_on(run, host)).by_epoch]) for host in run.telemetry
    ]


def _span_ns(rows: StepTable) -> Window:
    return int(rows["free_ns"].min()), int(rows["met_ns"].max())


def summarise_telemetry(run: MeasuredTraining) -> TelemetrySummary | None:
    """Return the devices and notes that telemetry recorded, and each host's mean power; None without telemetry."""
    if not run.telemetry:
        return None
    power: dict[str, dict[str, float | None]] = {}
    for host in run.telemetry:
        rows, meters = run.training.of("rank", ranks_on(run, host)), host.sources("power")
        span_ns = _span_ns(rows) if len(rows) else (0, 0)
        watts = {meter: known(mean_between(*host.readings("power", meter, "watts"), *span_ns)) for meter in meters}
        if watts:
            power[host.host] = watts
    return TelemetrySummary(
        devices=tuple(
            msgspec.convert({"host": host.host} | vars(device), HostDevice)
            for host, device in devices_of(run.telemetry)
        ),
        notes=tuple(dict.fromkeys(note for host in run.telemetry for note in host.notes)),
        power=power,
    )


def delivered_by_devices(run: MeasuredTraining, metric: str, *, probe: str = "") -> list[Delivered]:
    """Return a metric over time of each device that counts (`HostDevice.counted`); with `probe`, of its devices."""
    return [
        Delivered(ranks_on(run, host), *host.readings(device.probe, device.name, metric))
        for host, device in devices_of(run.telemetry)
        if device.counted and device.probe == (probe or device.probe)
    ]


def ranks_on(run: MeasuredTraining, host: HostTelemetry) -> tuple[int, ...]:
    """Return the ranks that ran on a host; their timestamps are on its clock."""
    return tuple(rank for rank, node in enumerate(run.facts.journal.rank_nodes) if node == host.node)


def _cores_used(host: HostTelemetry, windows: Windows) -> float:
    """Return how many cores the run's processes on a host used on average within windows of time; NaN if unknown."""
    used_cores = []
    for rank in host.sources("process"):
        times, seconds = host.readings("process", rank, "cpu_seconds")
        cores = np.diff(seconds, prepend=seconds[:1]) * 1e9 / np.maximum(np.diff(times, prepend=times[:1]), 1)
        used_cores.append(mean_within(times, cores, windows))
    return sum(used_cores) if used_cores else math.nan


def find_hot_drive(run: MeasuredTraining, rows: Rows) -> Finding | None:
    """Return a finding on the dataset's drive that most exceeded its warning temperature; None if none reached it."""
    by_excess: dict[float, Finding] = {}  # degrees above the drive's limit -> finding
    for host, epochs in _epochs_of_hosts(run, as_table(rows)):
        for drive in host.sources("temperature"):
            times, degrees = host.readings("temperature", drive, "celsius")
            _, limits = host.readings("temperature", drive, "limit_celsius")
            in_epochs = [degrees[(times >= begin) & (times <= end)] for begin, end in epochs]
            hottest = max((float(values.max()) for values in in_epochs if len(values)), default=-math.inf)
            # An NVMe drive's sensor is named after its controller (nvme0), the device after a namespace (nvme0n1).
            has_dataset = any(device.name == drive or device.name.startswith(f"{drive}n") for device in host.devices)
            if has_dataset and len(limits) and hottest >= limits[0]:
                limit = float(limits[0])
                finding = not_steady("hot_drive", drive=drive, celsius=hottest, limit_celsius=limit)
                by_excess.setdefault(hottest - limit, finding)
    return by_excess[max(by_excess)] if by_excess else None
