"""Metrics and conditions of a checkpoint run, for sweeps, comparisons and pages. GB are 1e9 bytes, GiB 2^30."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.checkpoint.summary import CheckpointFacts, CheckpointSummary, Issue, PhaseSummary
from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.metrics.checkpoint_rates import GIB, CheckpointTimes
from dlemu.report.units import plain
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, Value, mean_over

WRITING, READING = "writing", "reading"
"""The phases of a run."""

CATALOGUE = Catalogue(
    metrics=(
        Metric(
            "tensors of one checkpoint", "GiB", "neither", "of all ranks together", "checkpoint_gib", head="size\nGiB"
        ),
        Metric(
            "written, slowest rank",
            "GiB/s",
            "higher",
            "all bytes over the time of the slowest rank, as the rules of MLPerf Storage require",
            "write_slowest_gib_per_second",
            head="write\nGiB/s",
            has_interval=True,
            is_drawn=True,
            is_tile=True,
        ),
        Metric(
            "one checkpoint written",
            "s",
            "lower",
            "by the slowest rank, for which training waits",
            "write_slowest_seconds",
            head="write\ns",
            is_drawn=True,
            phase=WRITING,
        ),
        Metric(
            "fsync, of that time",
            "%",
            "neither",
            "share of the ranks' time in fsync",
            "write_fsync_percent",
            head="fsync\n%",
            is_drawn=True,
        ),
        Metric(
            "written, as DLIO", "GiB/s", "higher", "all bytes over the time of rank 0", "write_rank0_gib_per_second"
        ),
        Metric(
            "written, wall clock",
            "GB/s",
            "higher",
            "all bytes of all checkpoints over the sum of their wall-clock times",
            "write_wall_gb_per_second",
        ),
        Metric(
            "written to the devices",
            "MB/s",
            "higher",
            "what the devices behind the folder wrote during that time",
            "write_device_mb_per_second",
        ),
        Metric(
            "CPU of writing",
            "s/GB",
            "lower",
            "CPU time of the ranks, making the content included",
            "write_cpu_seconds_per_gb",
        ),
        Metric(
            "read, slowest rank",
            "GiB/s",
            "higher",
            "all bytes over the time of the slowest rank, as the rules of MLPerf Storage require",
            "read_slowest_gib_per_second",
            head="read\nGiB/s",
            has_interval=True,
            is_drawn=True,
            is_tile=True,
        ),
        Metric(
            "one checkpoint read",
            "s",
            "lower",
            "by the slowest rank, for which training waits",
            "read_slowest_seconds",
            head="read\ns",
            is_drawn=True,
            phase=READING,
        ),
        Metric(
            "read from storage",
            "%",
            "neither",
            "of the bytes, by the kernel's accounting or the devices, whichever is less",
            "read_from_storage_percent",
            head="storage\n%",
            is_drawn=True,
        ),
        Metric("read, as DLIO", "GiB/s", "higher", "all bytes over the time of rank 0", "read_rank0_gib_per_second"),
        Metric(
            "read, wall clock",
            "GB/s",
            "higher",
            "all bytes of all checkpoints over the sum of their wall-clock times",
            "read_wall_gb_per_second",
        ),
        Metric(
            "read from the devices",
            "MB/s",
            "higher",
            "what the devices behind the folder read during that time",
            "read_device_mb_per_second",
        ),
        Metric("CPU of reading", "s/GB", "lower", "CPU time of the ranks", "read_cpu_seconds_per_gb"),
        Metric(
            "of a training's time", "%", "lower", "share of the time that such checkpoints take", "training_percent"
        ),
        Metric(
            "AU, asynchronous",
            "%",
            "higher",
            "share of the time in which accelerators computed in this run, reading excluded",
            "asynchronous_au_percent",
        ),
        Metric(
            "safe after, asynchronous",
            "s",
            "lower",
            "from when training requested a checkpoint until it was on the storage",
            "asynchronous_safe_seconds",
        ),
    ),
    repetition="checkpoint",
    phases=(WRITING, READING),
    note="Means over the checkpoints of a run, by their slowest rank.",
)


_WORK_FACTS = ("model", "parameters", "files", "bytes", "tensor_bytes", "ranks_of_job", "first_rank")
"""Facts that describe the work, and follow from model and ranks."""
_INCIDENTAL_FACTS = ("folder", "kept")
"""Facts that do not affect the measurement."""


def figures(run: CheckpointRun) -> JobFigures:
    """Return a run's metrics; each checkpoint is a repetition."""
    summary = run.summary
    phases = {WRITING: summary.write, READING: summary.read}
    return JobFigures(
        kind=summary.kind,
        workload=summary.workload,
        ranks=summary.ranks,
        verdict=summary.verdict,
        limited_by={
            name: phase.limited_by.what if phase and phase.limited_by else None for name, phase in phases.items()
        },
        metrics=dict(_metrics(summary)),
    )


def conditions(summary: CheckpointSummary) -> Conditions:
    """Return the conditions under which a run was measured."""
    facts = {**asdict(summary.what), "ranks": summary.ranks}
    own, codes = ("ranks", *_INCIDENTAL_FACTS), {finding.code for finding in summary.findings}
    return Conditions(
        title=summary.title,
        started_at=summary.started_at,
        hosts=summary.environment.hosts,
        storage=summary.environment.storage,
        facts={key: plain(facts[key]) for key in own},
        work={key: facts[key] for key in _WORK_FACTS},
        how={key: value for key, value in facts.items() if key not in (*own, *_WORK_FACTS)},
        from_memory=(WRITING, READING) if Issue.IN_MEMORY in codes else (READING,) * (Issue.NOT_READ in codes),
        warnings=summary.loud_issues,
    )


def _metrics(summary: CheckpointSummary) -> Iterator[tuple[str, Value]]:
    """Yield the metrics in display order."""
    yield "checkpoint_gib", Value(summary.what.tensor_bytes / GIB)
    for name, phase in (("write", summary.write), ("read", summary.read)):
        if phase is not None:
            yield from (
                (f"{name}_{key}", value) for key, value in _phase_metrics(phase, summary.what, writes=name == "write")
            )
    if summary.training is not None:
        yield "training_percent", Value(summary.training.percent)
    behind = summary.asynchronous
    if behind is not None:
        yield "asynchronous_au_percent", Value(behind.au_percent)
        if behind.safe_seconds is not None and summary.write is not None:
            yield "asynchronous_safe_seconds", _over(summary.write, lambda part: part.safe_seconds)


def _phase_metrics(phase: PhaseSummary, what: CheckpointFacts, *, writes: bool) -> Iterator[tuple[str, Value]]:
    yield "slowest_gib_per_second", _over(phase, lambda part: part.slowest_gib_per_second or 0.0)
    yield "slowest_seconds", _over(phase, lambda part: part.slowest_seconds)
    yield "rank0_gib_per_second", _over(phase, lambda part: part.rank0_gib_per_second or 0.0)
    if phase.wall_gb_per_second is not None:
        width = _over(phase, lambda part: part.wall_gb_per_second or 0.0).half_width
        yield "wall_gb_per_second", Value(phase.wall_gb_per_second, width)
    if writes:
        width = _over(phase, lambda part: part.fsync_percent).half_width
        # Without fsync the share is only the time between two clock readings.
        yield "fsync_percent", Value(phase.fsync_percent, width) if what.fsync else Value(0.0)
    elif phase.from_storage_percent is not None:
        yield "from_storage_percent", Value(phase.from_storage_percent)
    if phase.device_mb_per_second is not None:
        yield "device_mb_per_second", Value(phase.device_mb_per_second)
    if phase.cpu_seconds_per_gb is not None:
        yield "cpu_seconds_per_gb", Value(phase.cpu_seconds_per_gb)


def _over(phase: PhaseSummary, value: Callable[[CheckpointTimes], float]) -> Value:
    return mean_over([value(part) for part in phase.checkpoints])
