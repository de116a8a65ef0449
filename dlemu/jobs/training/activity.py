"""What telemetry shows of the time of training: use of devices, cores, memory, network and power."""

from __future__ import annotations

import math

import numpy as np

from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.summary import HostDevice, TelemetrySummary
from dlemu.metrics.cache import Delivered, mean_between
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Finding
from dlemu.metrics.limit import Context
from dlemu.metrics.loss import waits_of
from dlemu.metrics.rates import Window, Windows, known, mean_within
from dlemu.metrics.rows import Rows, StepTable, in_order
from dlemu.results.host_activity import HostActivity, devices_of, highest
from dlemu.telemetry import HostTelemetry


def activity_during(run: MeasuredTraining, rows: Rows) -> Context:
    """Return what hosts did in the epochs of these rows; where no telemetry was recorded, the run's own CPU use."""
    rows, journal = in_order(rows), run.facts.journal
    hosts = _epochs_of_hosts(run, rows)
    waits: list[tuple[HostTelemetry, Windows]] = []  # in which a host's accelerators waited, on its clock
    for host in run.telemetry:
        waits.append((host, np.stack(waits_of(rows.of("rank", ranks_on(run, host))), axis=1)))
    all_waited = all(len(windows) for _, windows in waits)
    activity, waiting = HostActivity(hosts), HostActivity(waits if all_waited else hosts)
    cores_used = [_cores_used(host, windows) for host, windows in hosts]
    facts = [journal.hosts[host.node] for host, _ in hosts]
    # Each process's CPU time is rounded to ticks of 10 ms (proc(5)), so their sum may slightly exceed what was busy.
    own_percents = [100 * cores / host.cpu_count for cores, host in zip(cores_used, facts, strict=True)]
    use = [(busy, min(own, busy)) for busy, own in zip(activity.busy_percents, own_percents, strict=True)]
    known_use = [of_host for of_host in use if not math.isnan(of_host[0])]
    busy_percent, own_percent = max(known_use, default=(math.nan, math.nan))
    limit_used_percent = highest(
        100 * cores / (host.cpu_limit or math.inf) for cores, host in zip(cores_used, facts, strict=True)
    )
    if journal.cpu_seconds and journal.ended_ns:  # what the run itself used, with all its processes
        core_percent = 100e9 * sum(journal.cpu_seconds) / max(1, journal.ended_ns - journal.started_ns)
        if math.isnan(busy_percent):
            usable = sum(min(host.cpu_usable, host.cpu_limit or math.inf) for host in journal.hosts)
            busy_percent = core_percent / usable
        if limit_used_percent is None:
            limit_used_percent = core_percent / sum(host.cpu_limit or math.inf for host in journal.hosts)
    depths, device_busy = (waiting.block_device_means(name) for name in ("mean_queue_depth", "busy_percent"))
    return Context(
        host_busy_percent=busy_percent,
        own_busy_percent=own_percent,
        cpu_limit_used_percent=limit_used_percent or 0.0,
        cpu_throttled_percent=highest(activity.means("cpu", "throttled_percent")) or 0.0,
        memory_some_percent=highest(activity.means("pressure", "memory_some_percent")) or 0.0,
        network_percent=activity.link_percent("received_mb_per_second") or 0.0,
        device_depth=sum(depths) if depths and device_busy else math.nan,
        device_busy_percent=max(device_busy) if depths and device_busy else math.nan,
    )


def _epochs_of_hosts(run: MeasuredTraining, rows: StepTable) -> list[tuple[HostTelemetry, Windows]]:
    """Return each host with the epochs of its ranks' rows, on its clock."""
    return [
        (host, [_span_ns(part) for part in rows.of("rank", ranks_on(run, host)).by_epoch]) for host in run.telemetry
    ]


def _span_ns(rows: StepTable) -> Window:
    return int(rows["free_ns"].min()), int(rows["met_ns"].max())


def summarise_telemetry(run: MeasuredTraining) -> TelemetrySummary | None:
    """Return what was recorded, and on which hosts; None without telemetry."""
    if not run.telemetry:
        return None
    power: dict[str, dict[str, float | None]] = {}
    for host in run.telemetry:
        own, meters = run.training.of("rank", ranks_on(run, host)), host.sources("power")
        span = _span_ns(own) if len(own) else (0, 0)
        watts = {meter: known(mean_between(*host.readings("power", meter, "watts"), *span)) for meter in meters}
        if watts:
            power[host.host] = watts
    return TelemetrySummary(
        devices=tuple(
            HostDevice(
                host=host.host,
                probe=device.probe,
                name=device.name,
                model=device.model,
                size_bytes=device.size_bytes,
                counted=device.counted,
            )
            for host, device in devices_of(run.telemetry)
        ),
        notes=tuple(dict.fromkeys(note for host in run.telemetry for note in host.notes)),
        power=power,
    )


def delivered_by_devices(run: MeasuredTraining, metric: str, *, probe: str = "") -> list[Delivered]:
    """Return a metric of each counted device over time; `probe`: of devices with that one only."""
    return [
        Delivered(ranks_on(run, host), *host.readings(device.probe, device.name, metric))
        for host, device in devices_of(run.telemetry)
        if device.counted and device.probe == (probe or device.probe)
    ]


def ranks_on(run: MeasuredTraining, host: HostTelemetry) -> tuple[int, ...]:
    """Return the ranks on a host; their timestamps are on its clock."""
    return tuple(rank for rank, node in enumerate(run.facts.journal.rank_nodes) if node == host.node)


def _cores_used(host: HostTelemetry, windows: Windows) -> float:
    """Return how many cores the run's processes on a host used; NaN where that is not known."""
    used = []
    for rank in host.sources("process"):
        times, seconds = host.readings("process", rank, "cpu_seconds")
        cores = np.diff(seconds, prepend=seconds[:1]) * 1e9 / np.maximum(np.diff(times, prepend=times[:1]), 1)
        used.append(mean_within(times, cores, windows))
    return sum(used) if used else math.nan


def find_hot_drive(run: MeasuredTraining, rows: Rows) -> Finding | None:
    """Return the drive below the dataset that exceeded its own warning threshold the most; None if none reached it."""
    by_excess: dict[float, Finding] = {}
    for host, windows in _epochs_of_hosts(run, in_order(rows)):
        for drive in host.sources("temperature"):
            times, degrees = host.readings("temperature", drive, "celsius")
            _, limits = host.readings("temperature", drive, "limit_celsius")
            parts = [degrees[(times >= begin) & (times <= end)] for begin, end in windows]
            hottest = max((float(part.max()) for part in parts if len(part)), default=-math.inf)
            is_below = any(device.name == drive or device.name.startswith(f"{drive}n") for device in host.devices)
            if is_below and len(limits) and hottest >= limits[0]:
                limit = float(limits[0])
                finding = not_steady("hot_drive", drive=drive, celsius=hottest, limit_celsius=limit)
                by_excess.setdefault(hottest - limit, finding)
    return by_excess[max(by_excess)] if by_excess else None
