"""Computes the summary of a checkpoint run from its rows and telemetry; `judge` decides what limited each phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from dlemu.checkpoints.io_rows import IO_COLUMNS, WHOLE, WRITE, IoRows
from dlemu.config.schema import Checkpoint
from dlemu.jobs.checkpoint.measured import PHASES, ROWS, CheckpointRunFacts
from dlemu.jobs.checkpoint.summary import (
    Asynchronous,
    Cause,
    Caveat,
    CheckpointSummary,
    Phase,
    PhaseSummary,
    TrainingCost,
)
from dlemu.jobs.checkpoint.wording import incomplete_line, issue_lines, verdict_line
from dlemu.metrics.cache import ACCOUNTED, IN_MEMORY, delivered_between
from dlemu.metrics.checkpoint_rates import (
    asynchronous_au_percent,
    cost_percent,
    daly_seconds,
    shortest_interval_seconds,
    times_of,
    wasted_percent,
)
from dlemu.metrics.findings import Code, Finding, LimitedBy
from dlemu.metrics.limit import HELD_BACK_PERCENT
from dlemu.metrics.rates import known
from dlemu.metrics.t_interval import WINDOW, is_steady
from dlemu.results.host_activity import HostActivity, highest
from dlemu.results.measured import MeasuredRun, common_fields
from dlemu.results.parts import summarise_requests
from dlemu.results.tables import rows_table, write_table
from dlemu.telemetry import Telemetry

_TIME_COLUMNS = ("began_ns", "started_ns", "moved_ns", "synced_ns", "ended_ns", "asked_ns", "released_ns")
_NEAR_CEILING = 0.7  # above this share of the rate of content generation, the storage could perhaps take more


@dataclass(frozen=True, eq=False)
class CheckpointRun(MeasuredRun):
    """Measurements and summary of one checkpoint run."""

    facts: CheckpointRunFacts
    rows: IoRows
    """Rows of all ranks, one per file and one per whole checkpoint, with times by each host's own clock."""
    telemetry: Telemetry = ()

    @cached_property
    def summary(self) -> CheckpointSummary:
        """Every published number; incomplete for a failed run."""
        facts, journal, settings = self.facts, self.facts.journal, self.facts.workload.checkpoint
        sizes, kept = facts.written, tuple(sorted(set(journal.complete) - set(journal.removed)))
        write, write_findings = _phase(self, "write")
        read, read_findings = _phase(self, "read")
        findings = (*_caveats(facts, write, read), *write_findings, *read_findings)
        verdict = verdict_line(write, read)
        if facts.failure is not None:
            verdict = incomplete_line(facts, self.partial_files, kept)
        asynchronous = training = None
        if write is not None:
            stall_seconds, drain_seconds = write.slowest_seconds, 0.0
            if settings.asynchronous:
                drain_seconds = fmean(times.drain_seconds for times in write.checkpoints)
                asynchronous = _asynchronous(self, write, drain_seconds)
                stall_seconds = asynchronous.snapshot_seconds
            recovery_seconds = 0.0 if read is None else read.slowest_seconds
            training = training_cost(settings, sizes.ranks_of_job, stall_seconds, recovery_seconds, drain_seconds)
        return CheckpointSummary(
            **common_fields(facts),
            verdict=verdict,
            scale=facts.workload.scale or None,
            files=sizes.files,
            bytes=sizes.bytes,
            tensor_bytes=sizes.tensor_bytes,
            folder=settings.checkpoint_folder,
            kept=kept,
            write=write,
            read=read,
            training=training,
            asynchronous=asynchronous,
            ceiling_gb_per_second=journal.ceiling_gb_per_second,
            requests=summarise_requests(journal.requests) if journal.requests else None,
            issues=issue_lines(findings, (*facts.workload.notes, *facts.notes)),
            findings=findings,
        )

    def write_rows(self) -> None:
        """Write the parquet file of the rows; raises SpaceError."""
        write_table(self.folder, ROWS, rows_table(self.rows, IO_COLUMNS))

    @cached_property
    def whole(self) -> IoRows:
        """The rows of whole checkpoints, one per rank and checkpoint, with times by the first host's clock."""
        return self._by_first_clock(self.rows[self.rows["file"] == WHOLE])

    @cached_property
    def files(self) -> IoRows:
        """The rows of single files, with times by the first host's clock."""
        return self._by_first_clock(self.rows[self.rows["file"] != WHOLE])

    @property
    def partial_files(self) -> IoRows:
        """The rows of the complete files of the checkpoint that was under way when the run failed, by host clocks."""
        under_way, rows = self.facts.journal.under_way, self.rows
        if under_way is None or self.facts.failure is None:
            return rows[:0]
        is_under_way = (rows["phase"] == PHASES[under_way.phase]) & (rows["checkpoint"] == under_way.checkpoint)
        files: IoRows = rows[is_under_way & (rows["file"] != WHOLE)]
        return files

    def _by_first_clock(self, rows: IoRows) -> IoRows:
        """Return a copy of the rows with times by the first host's clock; 0, which means no time, stays 0."""
        nodes = self.facts.journal.rank_nodes
        offsets = np.array([self.offset_ns(node) for node in nodes] or [0], np.int64)[rows["rank"]]
        aligned = rows.copy()
        for name in _TIME_COLUMNS:
            aligned[name] += np.where(rows[name] > 0, offsets, 0)
        return aligned

    def offset_ns(self, node: int) -> int:
        """Return the first host's clock minus that of host `node`."""
        offsets = self.facts.journal.clock_offsets_ns
        return offsets[node] if node < len(offsets) else 0


def _phase(run: CheckpointRun, name: Phase) -> tuple[PhaseSummary | None, tuple[Finding, ...]]:
    """Return the summary and the findings of the checkpoints that all ranks completed; no summary if there are none."""
    all_rows = run.whole[run.whole["phase"] == PHASES[name]]
    by_checkpoint = [all_rows[all_rows["checkpoint"] == number] for number in set(all_rows["checkpoint"].tolist())]
    complete = [checkpoint for checkpoint in by_checkpoint if len(checkpoint) == run.facts.ranks]
    if not complete:
        return None, ()
    complete.sort(key=lambda checkpoint: int(checkpoint["began_ns"][0]))
    rows = np.concatenate(complete)
    checkpoints = tuple(map(times_of, complete))
    size_bytes = sum(times.bytes for times in checkpoints)
    wall_seconds = sum(times.wall_seconds for times in checkpoints)
    windows = [(checkpoint["began_ns"].min(), checkpoint["ended_ns"].max()) for checkpoint in complete]
    windows_ns = np.array(windows, np.int64)
    activity = HostActivity([(host, windows_ns - run.offset_ns(host.node)) for host in run.telemetry])
    writes, rate = name == "write", f"{name}_mb_per_second"
    mb_by_device = [
        sum(delivered_between(*host.readings(device.probe, device.name, rate), *window) for window in host_windows)
        for host, host_windows, device in activity.devices
    ]
    device_mb = known(sum(mb_by_device)) if mb_by_device else None
    phase = PhaseSummary(
        checkpoints=checkpoints,
        slowest_gib_per_second=fmean(times.slowest_gib_per_second for times in checkpoints),
        slowest_seconds=fmean(times.slowest_seconds for times in checkpoints),
        wall_gb_per_second=size_bytes / 1e9 / wall_seconds if wall_seconds else None,
        **time_shares(rows),
        from_storage_percent=None if writes else _from_storage_percent(run.facts, rows, device_mb),
        device_mb_per_second=device_mb / wall_seconds if device_mb is not None and wall_seconds else None,
        steady=is_steady([times.slowest_gib_per_second for times in checkpoints]) if writes else None,
        cpu_seconds_per_gb=float(rows["cpu_ns"].sum()) / size_bytes if size_bytes else None,
    )
    if not size_bytes:
        return phase, ()
    limit, findings = judge(
        name,
        phase,
        threads=int(rows["threads"].max()),
        host_busy_percent=highest(activity.busy_percents),
        device_busy_percent=highest(activity.block_device_means("busy_percent")),
        link_percent=activity.link_percent(f"{'sent' if writes else 'received'}_mb_per_second"),
        throttled_percent=highest(activity.means("cpu", "throttled_percent")),
    )
    return replace(phase, limited_by=limit), findings


def time_shares(rows: IoRows) -> dict[str, Any]:
    """Return the shares of time in `PhaseSummary`, %: fsync's of the ranks' time, the others of the threads' time."""
    rank_ns = rows["ended_ns"] - rows["began_ns"]
    thread_ns = float((rank_ns * np.maximum(rows["threads"], 1)).sum())
    columns = {
        "fsync_percent": ("fsync_ns", float(rank_ns.sum())),
        "call_percent": ("call_ns", thread_ns),
        "starved_percent": ("starved_ns", thread_ns),
        "cpu_percent": ("mover_cpu_ns", thread_ns),
        "cpu_wait_percent": ("mover_cpu_wait_ns", thread_ns),
    }
    return {
        name: 100 * float(rows[column].sum()) / total_ns if total_ns > 0 else 0.0
        for name, (column, total_ns) in columns.items()
    }


def accounted_percent(facts: CheckpointRunFacts, rows: IoRows) -> float | None:
    """Return the % of bytes read that came from storage, by /proc/PID/io; None if the kernel does not count them."""
    storage, size_bytes = facts.journal.storage, int(rows["bytes"].sum())
    is_counted = bool(rows["storage_bytes"].any()) or (storage is not None and storage.file_system in ACCOUNTED)
    return 100 * int(rows["storage_bytes"].sum()) / size_bytes if is_counted and size_bytes else None


def _from_storage_percent(facts: CheckpointRunFacts, rows: IoRows, device_mb: float | None) -> float | None:
    """Return the % of bytes read that came from storage: the smaller of the kernel's and the devices' count."""
    size_bytes = int(rows["bytes"].sum())
    if not size_bytes:
        return None
    if facts.journal.requests:  # objects are never in the page cache
        return 100.0
    by_devices = None if device_mb is None else 100 * device_mb * 1e6 / size_bytes
    percents = [percent for percent in (accounted_percent(facts, rows), by_devices) if percent is not None]
    return min(100.0, *percents) if percents else None


def training_cost(
    settings: Checkpoint, ranks: int, stall_seconds: float, recovery_seconds: float, drain_seconds: float = 0.0
) -> TrainingCost:
    """Return what checkpoints cost a job of `ranks` ranks; `recovery_seconds`, to read one, is 0 if unknown."""
    interval, mtbf_seconds = settings.interval_seconds, settings.gpu_mtbf_hours * 3600 / ranks
    cost = TrainingCost(interval_seconds=interval, percent=cost_percent(stall_seconds, interval, drain_seconds))
    if not mtbf_seconds:
        return cost
    best = max(daly_seconds(stall_seconds, mtbf_seconds), drain_seconds)
    return replace(
        cost,
        mtbf_hours=mtbf_seconds / 3600,
        best_interval_seconds=best,
        wasted_percent_now=wasted_percent(interval, stall_seconds, recovery_seconds, mtbf_seconds, drain_seconds),
        wasted_percent=wasted_percent(best, stall_seconds, recovery_seconds, mtbf_seconds, drain_seconds),
    )


def snapshot_seconds(settings: Checkpoint, largest_rank_bytes: int) -> float:
    """Return the time of a snapshot: the rank with the most bytes takes longest."""
    return largest_rank_bytes / 1e9 / settings.snapshot_gb_per_second


def _asynchronous(run: CheckpointRun, write: PhaseSummary, drain_seconds: float) -> Asynchronous:
    """Return the figures of asynchronous checkpoints; training waits for a snapshot, and for the previous drain."""
    workload = run.facts.workload
    rows = run.whole[run.whole["phase"] == WRITE]
    snapshot = snapshot_seconds(workload.checkpoint, run.facts.written.largest_rank_bytes)
    waits_ns = [rows["waited_ns"][rows["checkpoint"] == times.checkpoint].max() for times in write.checkpoints]
    stalls = [snapshot + float(wait_ns) / 1e9 for wait_ns in waits_ns]
    return Asynchronous(
        snapshot_seconds=snapshot,
        safe_seconds=fmean(times.safe_seconds for times in write.checkpoints),
        au_percent=asynchronous_au_percent(max(0.0, workload.checkpoint.time_between_checkpoints), stalls),
        shortest_interval_seconds=shortest_interval_seconds(snapshot, drain_seconds, workload.metric.au),
    )


def _caveats(facts: CheckpointRunFacts, write: PhaseSummary | None, read: PhaseSummary | None) -> Iterator[Finding]:
    """Yield the caveats of the run's numbers, loud ones first."""
    settings, journal = facts.workload.checkpoint, facts.journal
    if journal.storage is not None and journal.storage.file_system in IN_MEMORY:
        yield Finding.of(Code.NO_DATA_FROM_STORAGE, "loud", file_system=journal.storage.file_system)
    from_storage = None if read is None else read.from_storage_percent
    if from_storage is not None and from_storage < FROM_MEMORY_PERCENT:
        would_help = "checkpoint.odirect" if settings.evict_page_cache else "checkpoint.evict_page_cache"
        yield Finding.of(Code.PAGE_CACHE, "loud", from_storage_percent=from_storage, would_help=would_help)
    for node in journal.lost_recorders:
        yield Finding.of(Code.MEASUREMENT_INCOMPLETE, "caution", telemetry_of=journal.hosts[node].host)
    if write is None:
        return
    if not settings.fsync and not journal.requests:
        yield Finding(Caveat.NO_FSYNC, "caution")
    if write.steady is False:
        first, *_, last = (times.slowest_gib_per_second for times in write.checkpoints[-WINDOW:])
        yield Finding.of(Code.STORAGE_NOT_STEADY, "caution", first_gib_per_second=first, last_gib_per_second=last)
    ceiling, rate = journal.ceiling_gb_per_second or 0.0, write.wall_gb_per_second or 0.0
    if ceiling and rate > _NEAR_CEILING * ceiling:
        yield Finding.of(Code.EMULATOR_CEILING, "caution", ceiling_gb_per_second=ceiling, gb_per_second=rate)


# Thresholds; three are as for training: dlemu.metrics.limit.BUSY_PERCENT, STARVED_SHARE, metrics.cache.NOT_READ_PERCENT
STARVED_PERCENT = 10.0  # content generation is the limit if threads wait for content this share of their time
BUSY_PERCENT = 90.0  # a device or a network link this busy is saturated
WAIT_PERCENT = 15.0  # the host's CPU is the limit if threads wait for a core this share of their time
THREAD_PERCENT = 85.0  # copying bytes is the limit if threads run on a core this share of their time
FROM_MEMORY_PERCENT = 50.0  # below this share of bytes from storage, the page cache was measured


def judge(
    name: Phase,
    phase: PhaseSummary,
    *,
    threads: int,
    host_busy_percent: float | None = None,
    device_busy_percent: float | None = None,
    link_percent: float | None = None,
    throttled_percent: float | None = None,
) -> tuple[LimitedBy[Cause], tuple[Finding, ...]]:
    """Return what limited a phase, and the findings that explain it; a rank has `threads` that write or read.

    Percentages are of the busiest host, device and link, `throttled_percent` of a CPU limit's periods; None if unknown.
    """
    device_full = (device_busy_percent or 0.0) >= BUSY_PERCENT
    what: Cause = "storage"
    finding = None
    if phase.from_storage_percent is not None and phase.from_storage_percent < FROM_MEMORY_PERCENT:
        what, is_certain = "page cache", True
    elif phase.starved_percent >= STARVED_PERCENT:
        what, is_certain = "emulator", phase.starved_percent > 3 * STARVED_PERCENT
    elif phase.cpu_wait_percent >= WAIT_PERCENT and not device_full:
        what, is_certain = "host CPU", phase.cpu_wait_percent >= 2 * WAIT_PERCENT
        if throttled_percent is not None and throttled_percent >= HELD_BACK_PERCENT:
            finding = Finding.of(Code.CPU_QUOTA, "caution", throttled_percent=throttled_percent)
    elif link_percent is not None and link_percent >= BUSY_PERCENT:
        is_certain, finding = True, Finding.of(Code.NETWORK_FULL, "caution", link_percent=link_percent)
    elif phase.cpu_percent >= THREAD_PERCENT and not device_full:
        what, is_certain = "host CPU", False
        setting = "checkpoint.writers" if name == "write" else "checkpoint.readers"
        finding = Finding.of(Caveat.TOO_FEW_THREADS, "caution", setting=setting, threads=threads)
    else:
        is_certain = device_full or (
            device_busy_percent is not None
            and phase.call_percent + phase.fsync_percent >= 90
            and (host_busy_percent or 0.0) < BUSY_PERCENT  # the kernel needs cores to serve the calls
        )
    return LimitedBy(what=what, confidence="high" if is_certain else "medium"), (finding,) if finding else ()
