"""What is said of a run of checkpoints below its first screen, on the terminal and on its HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dlemu.checkpoints.stored import folder_name
from dlemu.jobs.checkpoint.summary import CheckpointSummary, PhaseSummary
from dlemu.report.table import Line, Section, Table, Words, columns
from dlemu.report.units import number, size
from dlemu.results.wording import count

Row = tuple[str, str, str]

_LONG_TABLE = 24  # a longer table is folded


def sections(summary: CheckpointSummary, _: str) -> Iterator[Section]:
    """Yield what is said of a run below its first screen."""
    for name, phase in (("Writing", summary.write), ("Reading", summary.read)):
        if phase and (limit := phase.limited_by):
            advice = [Line(f"to do: {sentence}", "strong") for sentence in limit.advice]
            title = f"{name} was limited by: {limit.what} (confidence: {limit.confidence})"
            yield Words(title, [*limit.evidence, *advice])
    yield checkpoint_table(summary)
    if left := list(left_behind(summary)):
        yield Words("Left behind", left)
    yield from _detail_tables(summary)


def checkpoint_table(summary: CheckpointSummary) -> Table:
    """Return the main table of a run's numbers."""
    rows = [
        ("checkpoint", size(summary.what.bytes), _work(summary)),
        *_phase(summary.write, "write"),
        *_phase(summary.read, "read"),
        *_partial(summary),
        *_training(summary),
        *_asynchronous(summary),
        *_cost(summary),
    ]
    head = columns("metric", "value", "what it is", whole=(0,))
    return Table(title=summary.title, columns=head, rows=rows)


def left_behind(summary: CheckpointSummary) -> Iterator[str]:
    """Yield a line on the checkpoints left on the storage, and how to remove them; nothing if the run wrote none."""
    what, kept = summary.what, summary.complete_checkpoints[-summary.what.kept :]
    if not what.kept:
        return
    name = folder_name(kept[0]) if len(kept) == 1 else folder_name(f"{{{kept[0]}..{kept[-1]}}}")
    own = ", on each host" if what.node_local and len(summary.environment.hosts) > 1 else ""
    command = f"rm -r {shlex.quote(what.folder.rstrip('/'))}/{name}"
    # `rm` can't remove objects
    remove = (
        f"; to remove them{own}: {command}" if summary.requests is None else "; remove them when they are not needed"
    )
    reads = " checkpoint.num_checkpoints_read=1" if summary.read is not None else ""
    fewer = f"; checkpoint.keep_last=1{reads} leaves one" if len(kept) > 1 else ""
    stay = "stays" if what.kept == 1 else "stay"
    there = f"checkpoints: {count(what.kept, 'checkpoint')}, {size(what.kept * what.bytes)}, {stay} in {what.folder}"
    yield f"{there}{remove}{fewer}"


def _work(summary: CheckpointSummary) -> str:
    what = summary.what
    ranks = what.written_by_ranks or summary.ranks
    share = count(ranks, "rank") if what.written_by_ranks else ""
    if what.ranks_of_job != ranks:
        share = f"ranks {what.first_rank} to {what.first_rank + ranks - 1} of {what.ranks_of_job:,}"
    share = f"{'written by ' if what.written_by_ranks else ''}{share}; " if share else ""
    grid = f"TP {what.tensor} x PP {what.pipeline} x DP {what.data}, ZeRO {what.zero_stage}"
    return f"{share}{count(what.files, 'file')}, format {what.format}; {grid}"


def _phase(phase: PhaseSummary | None, name: str) -> Iterator[Row]:
    if phase is None or phase.slowest_gib_per_second is None or phase.slowest_seconds is None:
        return
    times = count(len(phase.checkpoints), "checkpoint")
    yield name, f"{number(phase.slowest_gib_per_second.mean)} GiB/s", f"slowest rank (MLPerf), {times}"
    rank0 = phase.rank0_gib_per_second
    yield "  as DLIO", "-" if rank0 is None else f"{number(rank0.mean)} GiB/s", "by the time of rank 0"
    yield ("  wall clock", f"{number(phase.wall_gb_per_second)} GB/s", "from first start to last end")
    seconds = phase.slowest_seconds
    spread = f"p50 {number(seconds.p50)}, p99 {number(seconds.p99)}, max {number(seconds.max)} s"
    yield "  time", f"{number(seconds.mean)} s", spread
    if name == "write":
        longest = max(part.fsync_max_seconds for part in phase.checkpoints)
        of_folder = max(part.folder_sync_seconds for part in phase.checkpoints)
        once = f"; of it {number(of_folder)} s for the folder, once per host: only that of files grows with ranks"
        words = f"of the time; longest {number(longest)} s{once if of_folder else ''}"
        yield "  fsync", f"{phase.fsync_percent:.1f} %", words
    else:
        served = "not known" if phase.from_storage_percent is None else f"{phase.from_storage_percent:.1f} %"
        yield "  from storage", served, "of the bytes"
    if phase.device_mb_per_second is not None:
        yield "  devices", f"{number(phase.device_mb_per_second)} MB/s", "all devices behind the folder"
    if phase.cpu_seconds_per_gb is not None:
        content = phase.content_cpu_seconds_per_gb
        made = "" if content is None else f"; {number(content)} of it for generating content"
        yield "  CPU", f"{number(phase.cpu_seconds_per_gb)} s/GB", f"all ranks{made}"


def _partial(summary: CheckpointSummary) -> Iterator[Row]:
    at = summary.partial
    if at is not None:
        verb = "written" if at.phase == "write" else "read"
        moved = f"{size(at.bytes)} of {size(at.of_bytes)}; {at.ranks} of {summary.ranks} ranks were done"
        yield f"being {verb}", f"checkpoint {at.checkpoint}", f"{at.files} of {at.of_files} files complete, {moved}"


def _training(summary: CheckpointSummary) -> Iterator[Row]:
    cost = summary.training
    if cost is None:
        return
    stall = f"{number(cost.stall_seconds)} s every {cost.interval_seconds:,.0f} s"
    yield "cost in training", f"{cost.percent:.2f} %", stall
    if cost.recovery_seconds is not None:
        yield "recovery", f"{number(cost.recovery_seconds)} s", "to read one checkpoint"
    if cost.best_interval_seconds is not None and cost.wasted_percent is not None:
        by = "Daly, at least the time of writing" if summary.asynchronous else "Daly"
        lost = f"one failure every {cost.mtbf_hours:g} h: {cost.wasted_percent:.2f} % of the time lost in total"
        yield "best interval", f"{cost.best_interval_seconds:,.0f} s", f"{by}, {lost}"


def _asynchronous(summary: CheckpointSummary) -> Iterator[Row]:
    behind = summary.asynchronous
    if behind is None or behind.safe_seconds is None:
        return
    yield "asynchronous", f"AU {behind.au_percent:.2f} %", f"{number(behind.compute_seconds)} s computing in between"
    yield "  snapshot", f"{number(behind.snapshot_seconds)} s", "training paused"
    latest = f"max {number(behind.safe_seconds.max)} s, on storage"
    yield "  safe after", f"{number(behind.safe_seconds.mean)} s", latest
    yield (
        "  at most every",
        f"{number(behind.shortest_interval_seconds)} s",
        f"of computing for AU {behind.au_threshold_percent:g} %: {number(behind.per_hour)} checkpoints per hour",
    )


def _cost(summary: CheckpointSummary) -> Iterator[Row]:
    if summary.ceiling_gb_per_second is not None:
        yield ("content generation", f"{number(summary.ceiling_gb_per_second)} GB/s", "without writing it to storage")
    if summary.peak_memory_mb is not None:
        yield "memory per rank", f"{number(summary.peak_memory_mb)} MB", "peak, private"
    what, object_requests = summary.what, summary.requests
    through = ["O_DIRECT" if what.odirect else "page cache", "fsync" if what.fsync else "no fsync"]
    ways = [*(["uploads in parts"] if object_requests is not None else through), f"content {what.content}"]
    if summary.write is not None or (summary.partial is not None and summary.partial.phase == "write"):
        yield "written", ", ".join(ways), f"{count(what.writers, 'thread')} per rank; {what.kept} kept"
    if what.kept:
        yield "left on storage", size(what.kept * what.bytes), f"{count(what.kept, 'checkpoint')} in {what.folder}"
    if summary.read is not None:
        how = f"{count(what.readers, 'thread')} per rank" if what.read_as == "fast" else f"as {what.read_as}"
        checks = "every byte compared" if what.verified else "first blocks compared"
        evicted = "evicted; " if what.evicted and not what.odirect and object_requests is None else ""
        yield "read", how, evicted + checks


def _detail_tables(summary: CheckpointSummary) -> Iterator[Table]:
    for name, phase in (("Written", summary.write), ("Read", summary.read)):
        if phase is None:
            continue
        head = columns(
            *("checkpoint", "slowest rank, s", "GiB/s", "rank 0, s", "GiB/s (DLIO)", "wall, s", "GB/s", "fsync, %"),
            right=range(1, 8),
        )
        rows = [
            (
                str(part.checkpoint),
                f"{number(part.slowest_seconds)} (rank {part.slowest_rank})",
                number(part.slowest_gib_per_second),
                number(part.rank0_seconds),
                number(part.rank0_gib_per_second),
                number(part.wall_seconds),
                number(part.wall_gb_per_second),
                f"{part.fsync_percent:.1f}",
            )
            for part in phase.checkpoints
        ]
        yield Table(title=f"{name} checkpoints", columns=head, rows=rows, folded=len(rows) > _LONG_TABLE)
        head = columns(
            "rank", "host", "bytes", "mean, s", "max, s", "longest fsync, s", "slowest", right=(0, 2, 3, 4, 5, 6)
        )
        slow = [
            (
                str(one.rank),
                one.host,
                size(one.bytes),
                number(one.mean_seconds),
                number(one.max_seconds),
                number(one.max_fsync_seconds),
                f"{one.slowest_times} of {len(phase.checkpoints)}",
            )
            for one in phase.slowest_ranks
        ]
        yield Table(title=f"{name}: the slowest ranks", columns=head, rows=slow, folded=len(slow) > 8)
