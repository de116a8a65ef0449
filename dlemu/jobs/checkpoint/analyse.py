"""Computes the summary of a checkpoint run from its rows and telemetry.

`_phase` summarises writing or reading, `judge` decides what limited it, `_caveats` finds what weakens the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from dlemu.checkpoints.io_rows import IO_COLUMNS, WHOLE, WRITE, IoRows
from dlemu.jobs.checkpoint.measured import PHASES, ROWS, CheckpointRunFacts
from dlemu.jobs.checkpoint.summary import (
    Asynchronous,
    Cause,
    Caveat,
    CheckpointSummary,
    Phase,
    PhaseSummary,
    snapshot_seconds,
    training_cost,
)
from dlemu.jobs.checkpoint.wording import incomplete_line, issue_lines, verdict_line
from dlemu.metrics.cache import ACCOUNTED, IN_MEMORY, NOT_READ_PERCENT, delivered_between, smaller_percent
from dlemu.metrics.checkpoint_rates import asynchronous_au_percent, shortest_interval_seconds, times_of
from dlemu.metrics.findings import Code, Finding, LimitedBy
from dlemu.metrics.limit import BUSY_PERCENT, HELD_BACK_PERCENT, STARVED_SHARE
from dlemu.metrics.rates import known
from dlemu.metrics.t_interval import WINDOW, is_steady
from dlemu.results.host_activity import HostActivity, highest
from dlemu.results.measured import MeasuredRun, common_fields
from dlemu.results.parts import summarise_requests
from dlemu.results.tables import rows_table, write_table
from dlemu.telemetry import Telemetry

_TIME_COLUMNS = ("began_ns", "started_ns", "moved_ns", "synced_ns", "ended_ns", "asked_ns", "released_ns")
_NEAR_CEILING = 0.7  # above this share of the rate of content generation, the storage could perhaps take more
# Thresholds of `judge`, in % of the threads' time
STARVED_PERCENT = 10.0  # waiting for content: content generation is the limit
WAIT_PERCENT = 100 * STARVED_SHARE  # waiting for a core: the host's CPU is the limit
THREAD_PERCENT = 85.0  # running on a core: copying bytes is the limit


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
        """Of a failed run: the rows of the complete files of the checkpoint that was under way, by host clocks."""
        under_way, rows = self.facts.journal.under_way, self.rows
        if under_way is None:
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
    complete = [whole for whole in by_checkpoint if len(whole) == run.facts.ranks]
    if not complete:
        return None, ()
    complete.sort(key=lambda whole: int(whole["began_ns"][0]))
    rows = np.concatenate(complete)
    checkpoints = tuple(map(times_of, complete))
    size_bytes = sum(times.bytes for times in checkpoints)
    wall_seconds = sum(times.wall_seconds for times in checkpoints)
    windows_ns = np.array([(whole["began_ns"].min(), whole["ended_ns"].max()) for whole in complete], np.int64)
    activity = HostActivity([(host, windows_ns - run.offset_ns(host.node)) for host in run.telemetry])
    is_write = name == "write"
    rate_column = f"{name}_mb_per_second"
    mb_by_device = [
        sum(delivered_between(*host.readings(device.probe, device.name, rate_column), *window) for window in windows)
        for host, windows, device in activity.devices
    ]
    device_mb = known(sum(mb_by_device)) if mb_by_device else None
    phase = PhaseSummary(
        checkpoints=checkpoints,
        slowest_gib_per_second=fmean(times.slowest_gib_per_second for times in checkpoints),
        slowest_seconds=fmean(times.slowest_seconds for times in checkpoints),
        wall_gb_per_second=size_bytes / 1e9 / wall_seconds if wall_seconds else None,
        **time_shares(rows),
        from_storage_percent=None if is_write else _from_storage_percent(run.facts, rows, device_mb),
        device_mb_per_second=device_mb / wall_seconds if device_mb is not None and wall_seconds else None,
        steady=is_steady([times.slowest_gib_per_second for times in checkpoints]) if is_write else None,
        cpu_seconds_per_gb=float(rows["cpu_ns"].sum()) / size_bytes if size_bytes else None,
    )
    if not size_bytes:
        return phase, ()
    limit, findings = judge(
        "write" if is_write else run.facts.workload.checkpoint.read_as,
        phase,
        threads=int(rows["threads"].max()),
        host_busy_percent=highest(activity.busy_percents),
        device_busy_percent=highest(activity.block_device_means("busy_percent")),
        link_percent=activity.link_percent("sent_mb_per_second" if is_write else "received_mb_per_second"),
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
    """Return the % of bytes read that came from storage, as the kernel counts them (/proc/PID/io), or None."""
    storage = facts.journal.storage
    size_bytes = int(rows["bytes"].sum())
    is_counted = bool(rows["storage_bytes"].any()) or (storage is not None and storage.file_system in ACCOUNTED)
    return 100 * int(rows["storage_bytes"].sum()) / size_bytes if is_counted and size_bytes else None


def _from_storage_percent(facts: CheckpointRunFacts, rows: IoRows, device_mb: float | None) -> float | None:
    """Return the % of bytes read that came from storage: the smaller of the kernel's and the devices' count."""
    size_bytes = int(rows["bytes"].sum())
    if not size_bytes:
        return None
    if facts.journal.requests:  # objects are never in the page cache
        return 100.0
    return smaller_percent(accounted_percent(facts, rows), device_mb and 100e6 * device_mb / size_bytes)


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


def judge(
    how: str,
    phase: PhaseSummary,
    *,
    threads: int,
    host_busy_percent: float | None = None,
    device_busy_percent: float | None = None,
    link_percent: float | None = None,
    throttled_percent: float | None = None,
) -> tuple[LimitedBy[Cause], tuple[Finding, ...]]:
    """Return what limited a phase, and the findings that explain it; a rank has `threads` that write or read.

    `how` is "write", or the `checkpoint.read_as` of a read. Percentages are of the busiest host, device and link,
    `throttled_percent` of a CPU limit's periods; None if unknown.
    """
    is_device_full = (device_busy_percent or 0.0) >= BUSY_PERCENT
    if phase.from_storage_percent is not None and phase.from_storage_percent < NOT_READ_PERCENT:
        return LimitedBy(what="page cache", confidence="high"), ()
    if phase.starved_percent >= STARVED_PERCENT:
        is_certain = phase.starved_percent > 3 * STARVED_PERCENT
        return LimitedBy(what="emulator", confidence="high" if is_certain else "medium"), ()
    if phase.cpu_wait_percent >= WAIT_PERCENT and not is_device_full:
        findings: tuple[Finding, ...] = ()
        if throttled_percent is not None and throttled_percent >= HELD_BACK_PERCENT:
            findings = (Finding.of(Code.CPU_QUOTA, "caution", throttled_percent=throttled_percent),)
        is_certain = phase.cpu_wait_percent >= 2 * WAIT_PERCENT
        return LimitedBy(what="host CPU", confidence="high" if is_certain else "medium"), findings
    if link_percent is not None and link_percent >= BUSY_PERCENT:
        full_link = Finding.of(Code.NETWORK_FULL, "caution", link_percent=link_percent)
        return LimitedBy(what="storage", confidence="high"), (full_link,)
    if phase.cpu_percent >= THREAD_PERCENT and not is_device_full:
        settings = {"write": "checkpoint.writers", "fast": "checkpoint.readers"}
        setting = settings.get(how, "checkpoint.read_as=fast")
        few_threads = Finding.of(Caveat.TOO_FEW_THREADS, "caution", setting=setting, threads=threads)
        return LimitedBy(what="host CPU", confidence="medium"), (few_threads,)
    is_certain = is_device_full or (
        device_busy_percent is not None
        and phase.call_percent + phase.fsync_percent >= 90
        and (host_busy_percent or 0.0) < BUSY_PERCENT  # the kernel needs cores to serve the calls
    )
    return LimitedBy(what="storage", confidence="high" if is_certain else "medium"), ()


def _caveats(facts: CheckpointRunFacts, write: PhaseSummary | None, read: PhaseSummary | None) -> Iterator[Finding]:
    """Yield the caveats of the run's numbers, loud ones first."""
    settings, journal = facts.workload.checkpoint, facts.journal
    if journal.storage is not None and journal.storage.file_system in IN_MEMORY:
        yield Finding.of(Code.NO_DATA_FROM_STORAGE, "loud", file_system=journal.storage.file_system)
    from_storage = None if read is None else read.from_storage_percent
    if from_storage is not None and from_storage < NOT_READ_PERCENT:
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
