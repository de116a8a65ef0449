"""What telemetry shows of the time of training: use of devices, cores, memory, network and power; gaps in recording."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dlemu.jobs.training.measured import MeasuredTraining
from dlemu.jobs.training.summary import TelemetrySummary
from dlemu.metrics.cache import Delivered, mean_between
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import Activity, Device
from dlemu.metrics.loss import waits_of
from dlemu.metrics.rates import Windows, known, mean_within
from dlemu.metrics.rows import Rows, StepTable, in_order
from dlemu.results.host_activity import HostActivity, devices_of
from dlemu.results.parts import HostDevice
from dlemu.telemetry import HostTelemetry

_MIN_GAP_SECONDS, _MIN_GAP_INTERVALS = 5.0, 8.0
"""Readings further apart than the greater of the two are a gap; less may only mean that the host was busy."""


def activity_during(run: MeasuredTraining, rows: Rows) -> Activity:
    """Return the activity during the epochs of these rows; where no telemetry was recorded, the run's own CPU use."""
    rows, journal = in_order(rows), run.facts.journal
    hosts = _epochs_of_hosts(run, rows)
    cores = [
        _use_of_cores(run, host, windows, host_busy)
        for (host, windows), host_busy in zip(hosts, HostActivity(hosts).busy_percents, strict=True)
    ]
    known_use = [use for use in cores if use[0] is not None]
    busy, own, _ = max(known_use, key=lambda use: use[0] or 0.0, default=(None, None, None))
    limit_used = max((limit for _, _, limit in cores if limit is not None), default=None)
    if journal.cpu_seconds and journal.ended_ns:  # what the run itself used, with all its processes
        used = 1e9 * sum(journal.cpu_seconds) / max(1, journal.ended_ns - journal.started_ns)
        limits = [host.cpu_limit for host in journal.hosts if host.cpu_limit]
        if busy is None:
            busy = 100 * used / sum(min(host.cpu_usable, host.cpu_limit or math.inf) for host in journal.hosts)
        if limit_used is None and limits and len(limits) == len(journal.hosts):
            limit_used = 100 * used / sum(limits)

    activity, waiting = HostActivity(hosts), HostActivity(_waiting_windows(run, rows) or hosts)
    depths, device_busy = (waiting.of_block_devices(name) for name in ("mean_queue_depth", "busy_percent"))
    return Activity(
        host_busy_percent=busy,
        own_busy_percent=own,
        cpu_limit_used_percent=limit_used,
        cpu_throttled_percent=activity.most("cpu", "throttled_percent"),
        memory_some_percent=activity.most("pressure", "memory_some_percent"),
        network_percent=activity.link_percent("received_mb_per_second"),
        device=Device(mean_depth=sum(depths), busy_percent=max(device_busy)) if depths and device_busy else None,
    )


def _epochs_of_hosts(run: MeasuredTraining, rows: StepTable) -> list[tuple[HostTelemetry, Windows]]:
    """Return each host with the epochs of its ranks' rows, on its clock."""
    return [
        (host, [(int(part["free_ns"].min()), int(part["met_ns"].max())) for part in own.by_epoch])
        for host, own in ((host, rows.of("rank", ranks_on(run, host))) for host in run.telemetry)
    ]


def summarise_telemetry(run: MeasuredTraining) -> TelemetrySummary | None:
    """Return what was recorded, and on which hosts; None without telemetry."""
    hosts = run.telemetry
    if not hosts:
        return None
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
        notes=tuple(_notes(run)),
        power={host.host: _power(run, host) for host in hosts if host.sources("power")},
    )


def delivered_by_devices(run: MeasuredTraining) -> list[Delivered]:
    """Return the read throughput of each counted device over time."""
    return [
        Delivered(ranks_on(run, host), *host.readings(device.probe, device.name, "read_mb_per_second"))
        for host, device in devices_of(run.telemetry)
        if device.counted
    ]


def read_requests(run: MeasuredTraining) -> tuple[list[Delivered], list[Delivered]]:
    """Return MB/s and reads/s of each counted block device over time."""
    devices = [
        (host, device) for host, device in devices_of(run.telemetry) if device.counted and device.probe == "block"
    ]
    megabytes, requests = (
        [Delivered(ranks_on(run, host), *host.readings("block", device.name, name)) for host, device in devices]
        for name in ("read_mb_per_second", "reads_per_second")
    )
    return megabytes, requests


def ranks_on(run: MeasuredTraining, host: HostTelemetry) -> tuple[int, ...]:
    """Return the ranks on a host; their timestamps are on its clock."""
    return tuple(rank for rank, node in enumerate(run.facts.journal.rank_nodes) if node == host.node)


def find_recording_gaps(run: MeasuredTraining) -> Iterator[Finding]:
    """Yield a finding for each part of training that a host's recorder, killed or suspended, did not record."""
    lost = {run.facts.journal.hosts[node].host for node in run.facts.journal.lost_recorders}
    yield from (
        Finding.of(Code.MEASUREMENT_INCOMPLETE, "caution", pattern="no_telemetry", host=name)
        for name in sorted(lost - {host.host for host in run.telemetry})
    )
    for host in run.telemetry:
        own = run.training.of("rank", ranks_on(run, host))
        if not len(own):
            continue
        begin_ns, end_ns = int(own["free_ns"].min()), int(own["met_ns"].max())
        max_gap_ns = max(_MIN_GAP_SECONDS, _MIN_GAP_INTERVALS * host.interval_seconds) * 1e9
        times = host.time_ns[(host.time_ns > begin_ns) & (host.time_ns < end_ns)]
        moments = np.unique(np.concatenate([[begin_ns], times, [end_ns]]))
        was_read_after = bool(len(host.time_ns)) and int(host.time_ns.max()) >= end_ns
        for start_ns, stop_ns in pairwise(moments.tolist()):
            is_last = stop_ns == end_ns and not was_read_after
            if stop_ns - start_ns > max_gap_ns or (is_last and host.host in lost):
                from_seconds, to_seconds = ((moment - begin_ns) / 1e9 for moment in (start_ns, stop_ns))
                gap: dict[str, Number] = {"pattern": "gap", "host": host.host}
                gap |= {"from_seconds": from_seconds, "to_seconds": to_seconds}
                yield Finding(Code.MEASUREMENT_INCOMPLETE, "caution", gap)


def _notes(run: MeasuredTraining) -> Iterator[str]:
    """Yield the recorders' notes, each once; those not shared by all hosts begin with the names of their hosts."""
    hosts_by_note: dict[str, list[str]] = {}
    for host in run.telemetry:
        for note in host.notes:
            hosts_by_note.setdefault(note, []).append(host.host)
    for note, names in hosts_by_note.items():
        yield note if len(names) == len(run.telemetry) else f"{', '.join(names)}: {note}"


def _power(run: MeasuredTraining, host: HostTelemetry) -> dict[str, float | None]:
    """Return the mean watts of each meter of a host during training."""
    own = run.training.of("rank", ranks_on(run, host))
    begin_ns, end_ns = (int(own["free_ns"].min()), int(own["met_ns"].max())) if len(own) else (0, 0)
    readings = ((meter, host.readings("power", meter, "watts")) for meter in host.sources("power"))
    return {meter: known(mean_between(*watts, begin_ns, end_ns)) for meter, watts in readings}


def _waiting_windows(run: MeasuredTraining, rows: StepTable) -> list[tuple[HostTelemetry, Windows]]:
    """Return each host with the windows, on its clock, in which its accelerators waited; empty if a host had none."""
    waiting = [(host, np.stack(waits_of(rows.of("rank", ranks_on(run, host))), axis=1)) for host in run.telemetry]
    return [*waiting] if all(len(windows) for _, windows in waiting) else []


def _use_of_cores(
    run: MeasuredTraining, host: HostTelemetry, windows: Windows, busy: float
) -> tuple[float | None, float | None, float | None]:
    """Return the use of one host's cores by all programs (`busy`) and by the run, and of the run's CPU limit, in %."""
    facts, used = run.facts.journal.hosts[host.node], math.nan
    for number, rank in enumerate(host.sources("process")):
        times, seconds = host.readings("process", rank, "cpu_seconds")
        grown = np.diff(seconds, prepend=seconds[:1]) * 1e9 / np.maximum(np.diff(times, prepend=times[:1]), 1)
        used = mean_within(times, grown, windows) + (used if number else 0.0)
    own = 100 * used / facts.cpu_count
    # Each process's CPU time is rounded to ticks of 10 ms (proc(5)), so `own` may slightly exceed `busy`.
    own = busy if own > busy else own
    return known(busy), known(own), known(100 * used / facts.cpu_limit) if facts.cpu_limit else None


def find_hot_drive(run: MeasuredTraining, rows: Rows) -> Finding | None:
    """Return the drive below the dataset that exceeded its own warning threshold the most; None if none reached it."""
    hot: list[tuple[float, Finding]] = []
    for host, windows in _epochs_of_hosts(run, in_order(rows)):
        devices = {device.name for device in host.devices}
        for drive in host.sources("temperature"):
            times, degrees = host.readings("temperature", drive, "celsius")
            _, limits = host.readings("temperature", drive, "limit_celsius")
            parts = [degrees[(times >= begin) & (times <= end)] for begin, end in windows]
            hottest = max((float(part.max()) for part in parts if len(part)), default=-math.inf)
            is_below = any(name == drive or name.startswith(f"{drive}n") for name in devices)
            if is_below and len(limits) and hottest >= limits[0]:
                found = not_steady("hot_drive", drive=drive, celsius=hottest, limit_celsius=float(limits[0]))
                hot.append((hottest - float(limits[0]), found))
    return max(hot, key=lambda each: each[0], default=(0.0, None))[1]
