"""Computes the summary of a checkpoint run, with every published number, from its rows; a pure function."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dlemu.checkpoints.io_rows import READ, WHOLE, WRITE, IoRows
from dlemu.checkpoints.shards import parameters
from dlemu.checkpoints.stored import folder_of
from dlemu.config.schema import Checkpoint
from dlemu.jobs.checkpoint.limits import PhaseActivity, judge_checkpoints
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts, MeasuredCheckpoints, WrittenBy
from dlemu.jobs.checkpoint.summary import (
    Asynchronous,
    CheckpointFacts,
    CheckpointSummary,
    Issue,
    PartialCheckpoint,
    PhaseSummary,
    RankTimes,
    TrainingCost,
)
from dlemu.jobs.checkpoint.wording import in_words, issue_lines, outcome_of, result_line, result_word, why_incomplete
from dlemu.metrics.cache import ACCOUNTED
from dlemu.metrics.cache import IN_MEMORY as MEMORY_FILE_SYSTEMS
from dlemu.metrics.checkpoint_rates import (
    CheckpointTimes,
    asynchronous_au_percent,
    cost_percent,
    daly_seconds,
    over_checkpoints,
    shortest_interval_seconds,
    times_of,
    wasted_percent,
    young_seconds,
)
from dlemu.metrics.device import delivered_between
from dlemu.metrics.findings import Finding
from dlemu.metrics.over_time import Window, mean_within
from dlemu.metrics.spread import known
from dlemu.metrics.steady_state import WINDOW, is_steady
from dlemu.results.file_names import KILLED
from dlemu.results.measured import common_fields
from dlemu.results.parts import requests_of
from dlemu.telemetry import HostTelemetry

_MAX_RANKS = 16  # ranks listed: only the slowest are of interest
_NOT_READ_PERCENT = 50.0  # as in training: dlemu.metrics.cache.NOT_READ_PERCENT


def analyse_checkpoints(run: MeasuredCheckpoints) -> CheckpointSummary:
    """Return the summary of a run; for a failed run, of what it measured until then, marked incomplete."""
    facts, journal, workload = run.facts, run.facts.journal, run.facts.workload
    write, read = _phase(run, WRITE), _phase(run, READ)
    partial, findings = _partial(run), tuple(_issues(facts, write, read))
    outcome, verdict = outcome_of(write, read, facts.failure), result_line(write, read)
    if facts.failure is not None:
        writes = workload.checkpoint.num_checkpoints_write > 0
        kept = sorted(set(journal.complete) - set(journal.removed)) if writes else None
        verdict = f"{result_word(outcome)}: {why_incomplete(facts.failure, kept, partial)}"
    behind = _asynchronous(run, write)
    summary = CheckpointSummary(
        **common_fields(facts),
        verdict=verdict,
        verdict_code=outcome,
        scale=workload.scale or None,
        ranks_per_host=tuple(journal.rank_nodes.count(node) for node in range(len(journal.hosts))),
        what=_facts_of(facts),
        write=write,
        read=read,
        training=_training(workload.checkpoint, write, read, behind),
        asynchronous=behind,
        ceiling_gb_per_second=journal.ceiling_gb_per_second,
        peak_memory_mb=max(journal.peak_memory_bytes, default=0) / 1e6 or None,
        cpu_seconds=sum(journal.cpu_seconds) if journal.cpu_seconds else None,
        total_seconds=(journal.ended_ns - journal.started_ns) / 1e9 if journal.ended_ns else None,
        complete_checkpoints=journal.complete,
        partial=partial,
        eviction_seconds=journal.eviction_seconds,
        requests=requests_of(journal.requests) if journal.requests else None,
        issues=issue_lines(findings),
        findings=findings,
    )
    return summary


def _partial(run: MeasuredCheckpoints) -> PartialCheckpoint | None:
    """Return the checkpoint in progress when the run failed, with how much of it was done; None without one."""
    at = run.facts.journal.under_way
    if at is None or run.facts.failure is None:
        return None
    what = _facts_of(run.facts)
    rows = run.rows[(run.rows["phase"] == (WRITE if at.phase == "write" else READ))]
    rows = rows[rows["checkpoint"] == at.checkpoint]
    files = rows[rows["file"] != WHOLE]
    return PartialCheckpoint(
        phase=at.phase,
        checkpoint=at.checkpoint,
        folder=folder_of(what.folder, at.checkpoint),
        ranks=int((rows["file"] == WHOLE).sum()),
        files=len(files),
        of_files=what.files,
        bytes=int(files["bytes"].sum()),
        of_bytes=what.bytes,
    )


def _phase(run: MeasuredCheckpoints, phase: int) -> PhaseSummary | None:
    """Return the summary of the checkpoints that every rank wrote (or read); None without one."""
    found = run.whole[run.whole["phase"] == phase]
    parts = [found[found["checkpoint"] == number] for number in dict.fromkeys(found["checkpoint"].tolist())]
    parts = sorted((part for part in parts if len(part) == run.facts.ranks), key=lambda part: int(part["began_ns"][0]))
    if not parts:
        return None
    rows = np.concatenate(parts)
    accounted = phase == READ and _is_accounted(run.facts, rows)
    times = tuple(times_of(part, accounted=accounted) for part in parts)
    size_bytes = sum(part.bytes for part in times)
    wall = sum(part.wall_seconds for part in times)
    thread_ns = float(((rows["ended_ns"] - rows["began_ns"]) * np.maximum(rows["threads"], 1)).sum())
    rank_ns = float((rows["ended_ns"] - rows["began_ns"]).sum())
    content_cpu_ns = float(rows["content_cpu_ns"].sum())
    host = _HostActivity(run, phase, parts)
    device_mb = host.device_mb
    device = device_mb / wall if device_mb is not None and wall else None
    served = _served(run.facts, rows, accounted, device_mb) if phase == READ else None
    activity = PhaseActivity(
        phase="read" if phase == READ else "write",
        gb_per_second=size_bytes / 1e9 / wall if wall else 0.0,
        call_percent=_percent(float(rows["call_ns"].sum()), thread_ns),
        fsync_percent=_percent(float(rows["fsync_ns"].sum()), rank_ns),
        starved_percent=_percent(float(rows["starved_ns"].sum()), thread_ns),
        cpu_percent=_percent(float(rows["mover_cpu_ns"].sum()), thread_ns),
        cpu_wait_percent=_percent(float(rows["mover_cpu_wait_ns"].sum()), thread_ns),
        ceiling_gb_per_second=run.facts.journal.ceiling_gb_per_second,
        from_storage_percent=served,
        host_busy_percent=host.host_busy_percent,
        device_mb_per_second=device,
        device_busy_percent=host.device_busy_percent,
        device_depth=host.device_depth,
        link_percent=host.link_percent,
        throttled_percent=host.throttled_percent,
        threads=int(rows["threads"].max()),
        evicted=run.facts.workload.checkpoint.evict_page_cache,
        verified=phase == READ and run.facts.workload.checkpoint.verify,
        past_page_cache=run.facts.workload.checkpoint.odirect or bool(run.facts.journal.requests),
    )
    return PhaseSummary(
        checkpoints=times,
        rank0_gib_per_second=over_checkpoints([part.rank0_gib_per_second or 0.0 for part in times]),
        rank0_seconds=over_checkpoints([part.rank0_seconds for part in times]),
        slowest_gib_per_second=over_checkpoints([part.slowest_gib_per_second or 0.0 for part in times]),
        slowest_seconds=over_checkpoints([part.slowest_seconds for part in times]),
        wall_gb_per_second=size_bytes / 1e9 / wall if wall else None,
        fsync_percent=activity.fsync_percent,
        from_storage_percent=served,
        device_mb_per_second=device,
        steady=is_steady([part.slowest_gib_per_second or 0.0 for part in times]) if phase == WRITE else None,
        cpu_seconds_per_gb=float(rows["cpu_ns"].sum()) / size_bytes if size_bytes else None,
        content_cpu_seconds_per_gb=content_cpu_ns / size_bytes if size_bytes and phase == WRITE else None,
        slowest_ranks=_slowest_ranks(run, rows, times),
        limited_by=in_words(judge_checkpoints(activity), run.facts.ranks) if size_bytes else None,
    )


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole > 0 else 0.0


def _is_accounted(facts: CheckpointRunFacts, rows: IoRows) -> bool:
    """Return whether /proc/PID/io counts this file system's reads: it has counted some, or is known to."""
    storage = facts.journal.storage
    return bool(rows["storage_bytes"].any()) or (storage is not None and storage.file_system in ACCOUNTED)


def _served(facts: CheckpointRunFacts, rows: IoRows, accounted: bool, device_mb: float | None) -> float | None:
    size_bytes = int(rows["bytes"].sum())
    if not size_bytes:
        return None
    if facts.journal.requests:  # objects are never in the page cache
        return 100.0
    shares = [100 * int(rows["storage_bytes"].sum()) / size_bytes] if accounted else []
    if device_mb is not None:
        shares.append(100 * device_mb * 1e6 / size_bytes)
    return min(100.0, *shares) if shares else None


class _HostActivity:
    """What the hosts and their devices did during the checkpoints of one phase."""

    def __init__(self, run: MeasuredCheckpoints, phase: int, parts: list[IoRows]) -> None:
        windows = [(int(part["began_ns"].min()), int(part["ended_ns"].max())) for part in parts]
        self._hosts = [
            (host, [(begin - run.offset_ns(host.node), end - run.offset_ns(host.node)) for begin, end in windows])
            for host in run.telemetry
        ]
        self._flow = "received_mb_per_second" if phase == READ else "sent_mb_per_second"
        self._rate = "read_mb_per_second" if phase == READ else "write_mb_per_second"

    @property
    def host_busy_percent(self) -> float | None:
        """CPU utilisation of the busiest host."""
        busy = [
            100.0
            - sum(mean_within(*host.readings("cpu", "", name), windows) for name in ("idle_percent", "iowait_percent"))
            for host, windows in self._hosts
        ]
        return max((value for value in busy if not math.isnan(value)), default=None)

    @property
    def throttled_percent(self) -> float | None:
        """Share of CPU-limit periods with throttling, on the most throttled host; None without a limit."""
        held = (mean_within(*host.readings("cpu", "", "throttled_percent"), windows) for host, windows in self._hosts)
        return max((value for value in held if not math.isnan(value)), default=None)

    @property
    def device_mb(self) -> float | None:
        """MB that the devices behind the folder wrote (or read) in all, each shared device counted once."""
        activity = [
            sum(delivered_between(*host.readings(probe, name, self._rate), *window) for window in windows)
            for host, windows, probe, name in self._devices()
        ]
        return known(sum(activity)) if activity else None

    @property
    def device_busy_percent(self) -> float | None:
        """Utilisation of the busiest block device."""
        return max(self._block_device_means("busy_percent"), default=None)

    @property
    def device_depth(self) -> float | None:
        """Mean number of requests in flight, summed over the block devices."""
        depths = self._block_device_means("mean_queue_depth")
        return sum(depths) if depths else None

    @property
    def link_percent(self) -> float | None:
        """Utilisation of the busiest network link."""
        used = []
        for host, windows in self._hosts:
            for source in host.sources("network"):
                _, speeds = host.readings("network", source, "link_mb_per_second")
                rate = mean_within(*host.readings("network", source, self._flow), windows)
                if len(speeds) and not math.isnan(rate):
                    used.append(100 * rate / float(speeds[-1]))
        return max(used, default=None)

    def _block_device_means(self, metric: str) -> list[float]:
        values = [
            mean_within(*host.readings("block", name, metric), windows)
            for host, windows, probe, name in self._devices()
            if probe == "block"
        ]
        return [value for value in values if not math.isnan(value)]

    def _devices(self) -> Iterator[tuple[HostTelemetry, list[Window], str, str]]:
        seen = set()
        for host, windows in self._hosts:
            for device in host.devices:
                if device.counted and (host.boot_id, device.name) not in seen:
                    seen.add((host.boot_id, device.name))
                    yield host, windows, device.probe, device.name


def _slowest_ranks(run: MeasuredCheckpoints, rows: IoRows, times: tuple[CheckpointTimes, ...]) -> tuple[RankTimes, ...]:
    journal = run.facts.journal
    ranks = []
    for rank in np.unique(rows["rank"]).tolist():
        own = rows[rows["rank"] == rank]
        seconds = (own["ended_ns"] - own["began_ns"]) / 1e9
        ranks.append(
            RankTimes(
                rank=rank,
                host=journal.hosts[journal.rank_nodes[rank]].host if journal.hosts else "",
                bytes=int(own["bytes"].max()),
                mean_seconds=float(seconds.mean()),
                max_seconds=float(seconds.max()),
                max_fsync_seconds=float(own["fsync_ns"].max()) / 1e9,
                slowest_times=sum(part.slowest_rank == rank for part in times),
            )
        )
    return tuple(sorted(ranks, key=lambda one: -one.mean_seconds)[:_MAX_RANKS])


def _training(
    settings: Checkpoint, write: PhaseSummary | None, read: PhaseSummary | None, behind: Asynchronous | None
) -> TrainingCost | None:
    if write is None or write.slowest_seconds is None:
        return None
    stall, drain = write.slowest_seconds.mean, 0.0
    if behind is not None and behind.drain_seconds is not None:
        stall, drain = behind.snapshot_seconds, behind.drain_seconds.mean
    recovery = read.slowest_seconds.mean if read is not None and read.slowest_seconds is not None else None
    return training_cost(settings, stall, recovery, drain)


def training_cost(
    settings: Checkpoint, stall_seconds: float, recovery_seconds: float | None, drain_seconds: float = 0.0
) -> TrainingCost:
    """Return the cost at the settings' interval of checkpoints that stall training and then drain for so long each."""
    interval, mtbf = settings.interval_seconds, settings.mtbf_hours * 3600
    best = max(daly_seconds(stall_seconds, mtbf), drain_seconds) if mtbf else None
    costs = stall_seconds, recovery_seconds or 0.0, mtbf, drain_seconds
    return TrainingCost(
        interval_seconds=interval,
        stall_seconds=stall_seconds,
        percent=cost_percent(stall_seconds, interval, drain_seconds),
        recovery_seconds=recovery_seconds,
        mtbf_hours=settings.mtbf_hours or None,
        best_interval_seconds=best,
        young_interval_seconds=max(young_seconds(stall_seconds, mtbf), drain_seconds) if mtbf else None,
        wasted_percent=wasted_percent(best, *costs) if best is not None else None,
        wasted_percent_now=wasted_percent(interval, *costs) if mtbf else None,
    )


def snapshot_seconds(settings: Checkpoint, largest_rank_bytes: int) -> float:
    """Return the time of a snapshot, which is that of the rank with the most bytes."""
    return largest_rank_bytes / 1e9 / settings.snapshot_gb_per_second


def _asynchronous(run: MeasuredCheckpoints, write: PhaseSummary | None) -> Asynchronous | None:
    facts, settings = run.facts, run.facts.workload.checkpoint
    if not settings.asynchronous or write is None:
        return None
    rows = run.whole[run.whole["phase"] == WRITE]
    numbers = [part.checkpoint for part in write.checkpoints]
    snapshot = snapshot_seconds(settings, facts.sizes.largest_rank_bytes)
    drains, stalls = [], []
    for number in numbers:
        own = rows[rows["checkpoint"] == number]
        drains.append(float(own["ended_ns"].max() - own["released_ns"].max()) / 1e9)
        stalls.append(snapshot + float(own["waited_ns"].max()) / 1e9)
    au = facts.workload.metric.au
    shortest = shortest_interval_seconds(snapshot, float(np.mean(drains)), au)
    compute = max(0.0, settings.time_between_checkpoints)
    return Asynchronous(
        snapshot_seconds=snapshot,
        safe_seconds=over_checkpoints([part.safe_seconds for part in write.checkpoints]),
        drain_seconds=over_checkpoints(drains),
        compute_seconds=compute,
        au_percent=asynchronous_au_percent(compute, stalls),
        shortest_interval_seconds=shortest,
        per_hour=3600 / (shortest / au) if shortest > 0 else math.inf,
        au_threshold_percent=100 * au,
    )


def _facts_of(facts: CheckpointRunFacts) -> CheckpointFacts:
    plan, sizes, workload, settings = facts.plan, facts.sizes, facts.workload, facts.workload.checkpoint
    journal, by = facts.journal, facts.written_by or WrittenBy.of(plan)
    return CheckpointFacts(
        folder=settings.checkpoint_folder,
        model=workload.model.name,
        format=by.format,
        parameters=parameters(workload.model),
        files=sizes.files,
        bytes=sizes.bytes,
        tensor_bytes=sizes.tensor_bytes,
        ranks_of_job=by.ranks_of_job,
        first_rank=by.first_rank,
        tensor=plan.grid.tensor,
        pipeline=plan.grid.pipeline,
        data=by.data,
        zero_stage=plan.grid.zero_stage,
        content=settings.content if settings.randomize_tensor else "ones",
        fsync=settings.fsync,
        odirect=settings.odirect,
        writers=settings.writers,
        read_as=settings.read_as,
        readers=settings.readers,
        verified=settings.verify,
        evicted=settings.evict_page_cache,
        kept=len(set(journal.complete) - set(journal.removed)),
        transfer_size=settings.transfer_size,
        written_by_ranks=facts.written_by.ranks if facts.written_by else None,
        node_local=settings.node_local,
    )


def _issues(facts: CheckpointRunFacts, write: PhaseSummary | None, read: PhaseSummary | None) -> Iterator[Finding]:
    settings, storage = facts.workload.checkpoint, facts.journal.storage
    for note in (*facts.workload.notes, *facts.notes):
        yield Finding.of(Issue.NOTE, "caution", text=note)
    for node in facts.journal.lost_recorders:
        yield Finding.of(Issue.TELEMETRY_ENDS_EARLY, "caution", host=facts.journal.hosts[node].host)
    at = facts.journal.under_way
    if facts.failure == KILLED and at is not None and at.phase == "write":
        folder = folder_of(settings.checkpoint_folder, at.checkpoint)
        yield Finding.of(Issue.PARTIAL_LEFT, "caution", folder=folder)
    if storage is not None and storage.file_system in MEMORY_FILE_SYSTEMS:
        yield Finding.of(Issue.IN_MEMORY, "loud", file_system=storage.file_system)
    if write is not None and not settings.fsync and not facts.journal.requests:
        yield Finding(Issue.NO_FSYNC, "caution")
    if write is not None and write.steady is False:
        first, *_, last = (part.slowest_gib_per_second or 0.0 for part in write.checkpoints[-WINDOW:])
        yield Finding.of(Issue.NOT_STEADY, "caution", first_gib_per_second=first, last_gib_per_second=last)
    if read is not None and read.from_storage_percent is not None and read.from_storage_percent < _NOT_READ_PERCENT:
        would_help = "checkpoint.odirect" if settings.evict_page_cache else "checkpoint.evict_page_cache"
        yield Finding.of(Issue.NOT_READ, "loud", cache_percent=100 - read.from_storage_percent, would_help=would_help)
    ceiling = facts.journal.ceiling_gb_per_second
    if write is not None and ceiling and write.wall_gb_per_second and write.wall_gb_per_second > 0.7 * ceiling:
        yield Finding.of(
            Issue.CONTENT_CEILING, "caution", ceiling_gb_per_second=ceiling, gb_per_second=write.wall_gb_per_second
        )
