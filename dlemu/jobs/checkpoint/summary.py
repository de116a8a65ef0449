"""Types, costs and metrics of a checkpoint run's summary.json; field docstrings explain keys. GB: 1e9, GiB: 2^30."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from dlemu.config.schema import Checkpoint
from dlemu.metrics.catalogue import Catalogue, Metric, declared
from dlemu.metrics.checkpoint_rates import GIB, CheckpointTimes, cost_percent, daly_seconds, wasted_percent
from dlemu.metrics.findings import LimitedBy
from dlemu.results.figures import Value, half_width_of
from dlemu.results.parts import StorageSummary
from dlemu.results.wording import count

Phase = Literal["write", "read"]
Cause = Literal["storage", "host CPU", "emulator", "page cache"]  # what limits writing or reading
WRITING, READING = "writing", "reading"  # the phases of a run


class Caveat(StrEnum):
    """Codes of findings that only checkpoints have, beside those of `dlemu.metrics.findings.Code`."""

    NO_FSYNC = "no_fsync"
    TOO_FEW_THREADS = "too_few_threads"
    """Each thread that writes or reads is busy copying bytes."""


def _explaining(title: str, unit: str) -> Metric:
    """Return a metric that explains how long a phase took: `dlemu compare` leaves it out."""
    return Metric(title, unit, "neither", is_compared=False)


@dataclass(frozen=True, kw_only=True)
class PhaseSummary:
    """All checkpoints that were written, or all that were read; times and rates of ranks are means over them."""

    checkpoints: tuple[CheckpointTimes, ...]
    slowest_gib_per_second: Annotated[
        float,
        Metric("slowest rank", "GiB/s", "higher", head="GiB/s", has_interval=True, is_drawn=True, is_tile=True),
    ]
    """All ranks' bytes / the time of the slowest rank, as the rules of MLPerf Storage require."""
    slowest_seconds: Annotated[float, Metric("one checkpoint", "s", "lower", head="s", is_drawn=True)]
    """Time of the slowest rank, for which training waits."""
    fsync_percent: Annotated[float, Metric("fsync, of that time", "%", "neither", head="fsync\n%", is_drawn=True)]
    """Share of the ranks' time in fsync."""
    wall_gb_per_second: Annotated[float | None, Metric("wall clock", "GB/s", "higher")]
    """All bytes of all checkpoints / the sum of their wall-clock times, 1e9 bytes/s."""
    from_storage_percent: Annotated[
        float | None, Metric("from storage", "%", "neither", head="storage\n%", is_drawn=True)
    ] = None
    """Reading only: share of the bytes from storage, by the kernel's accounting or the devices, whichever is less."""
    device_mb_per_second: Annotated[float | None, Metric("devices", "MB/s", "higher")] = None
    """Throughput of the devices behind the folder meanwhile, 1e6 bytes/s."""
    cpu_seconds_per_gb: Annotated[float | None, Metric("CPU", "s/GB", "lower")] = None
    """CPU time of the ranks per 1e9 bytes, including content generation."""
    call_percent: Annotated[float, _explaining("in calls", "%")]
    """Share of the threads' time in write or read calls."""
    starved_percent: Annotated[float, _explaining("waiting for content", "%")]
    """Share of the threads' time waiting for content to be generated."""
    cpu_percent: Annotated[float, _explaining("on a core", "%")]
    """Share of the threads' time running on a core."""
    cpu_wait_percent: Annotated[float, _explaining("waiting for a core", "%")]
    """Share of the threads' time runnable, but waiting for a core."""
    steady: bool | None = None
    """Writing only: the last five checkpoints had the same speed (SNIA's steady state); null with fewer."""
    limited_by: LimitedBy[Cause] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What such checkpoints would cost a training run."""

    interval_seconds: float
    """Computing time between two checkpoints (`checkpoint.interval_seconds`)."""
    percent: Annotated[float, Metric("of a training's time", "%", "lower")]
    """Share of training's time lost to checkpoints."""
    mtbf_hours: float | None = None
    """Mean time between failures of the job (`checkpoint.gpu_mtbf_hours` / its ranks)."""
    best_interval_seconds: Annotated[float | None, _explaining("best interval", "s")] = None
    """Optimal interval for `mtbf_hours`, by Daly's formula; at least the drain."""
    wasted_percent_now: Annotated[float | None, _explaining("lost with failures now", "%")] = None
    """Time lost to checkpoints, recomputed work and recovery at `interval_seconds`."""
    wasted_percent: Annotated[float | None, _explaining("lost with failures at best", "%")] = None
    """Time lost to checkpoints, recomputed work and recovery at `best_interval_seconds`."""


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
    """Return the time of a snapshot of an asynchronous checkpoint: the rank with the most bytes takes longest."""
    return largest_rank_bytes / 1e9 / settings.snapshot_gb_per_second


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Results of asynchronous checkpoints, which are written while training goes on."""

    snapshot_seconds: Annotated[float, _explaining("snapshot", "s")]
    """Time of a snapshot: how long training stalls if the checkpoint before is complete."""
    au_percent: Annotated[float, Metric("AU, asynchronous", "%", "higher")]
    """Accelerator utilisation of this run: share of the time spent computing, reading excluded."""
    safe_seconds: Annotated[float, Metric("safe after, asynchronous", "s", "lower")]
    """From when training was ready for a checkpoint until it was on the storage, the mean over checkpoints."""
    shortest_interval_seconds: Annotated[float, _explaining("at most every", "s")]
    """Minimum computing time between two checkpoints that reaches an AU of `metric.au`."""


@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """What one checkpoint holds, measured or predicted, and what such checkpoints cost a training."""

    bytes: int
    """Bytes of one checkpoint, of the emulated ranks."""
    training: TrainingCost | None = None
    """None where it is not known how fast checkpoints are written."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary(CheckpointCost, StorageSummary):
    """The result of a checkpoint run; complete if every checkpoint was written and read."""

    kind: str = "checkpoint"
    files: int
    """Of one checkpoint, as are the bytes."""
    tensor_bytes: int
    folder: str
    kept: tuple[int, ...]
    """Numbers of this run's complete checkpoints that are left in the folder."""
    write: PhaseSummary | None = None
    read: PhaseSummary | None = None
    asynchronous: Asynchronous | None = None
    ceiling_gb_per_second: Annotated[float | None, _explaining("content generation", "GB/s")] = None
    """Rate at which all ranks generate content without storage, 1e9 bytes/s: the upper limit of writing here."""

    @property
    def checkpoint_gib(
        self,
    ) -> Annotated[float, Metric("tensors of one checkpoint", "GiB", "neither", head="size\nGiB")]:
        """Bytes of all ranks' tensors together."""
        return self.tensor_bytes / GIB

    @property
    def title(self) -> str:
        """Workload, scale and ranks, for headings."""
        scale = f" (scale {self.scale})" if self.scale else ""
        return f"{self.workload}{scale}: checkpoints of {count(self.ranks, 'rank')}"


_PARTS: dict[str, type[Any]] = {
    "write": PhaseSummary,
    "read": PhaseSummary,
    "training": TrainingCost,
    "asynchronous": Asynchronous,
}
"""Fields of the summary whose metrics are named `FIELD_METRIC`."""
_PHASES = {"write": (WRITING, "written"), "read": (READING, "read")}  # field -> phase, and the verb of its metrics
_ABSENT = {"write": ("from_storage",), "read": ("fsync", "starved")}  # field -> prefixes of metrics that it lacks


def _metrics() -> Iterator[Metric]:
    """Yield the metrics of the summary and, with the field's name before theirs, those of its parts."""
    yield from declared(CheckpointSummary)
    for part, kind in _PARTS.items():
        phase, verb = _PHASES.get(part, ("", ""))
        for metric in declared(kind):
            named = replace(metric, name=f"{part}_{metric.name}")
            if not phase:
                yield named
            elif not metric.name.startswith(_ABSENT[part]):
                duration_of = phase if metric.name == "slowest_seconds" else ""
                head = metric.head and f"{part} {metric.head}"
                yield replace(named, title=f"{verb}, {metric.title}", head=head, phase=duration_of)


CATALOGUE = Catalogue(
    metrics=tuple(_metrics()),
    repetition="checkpoint",
    phases=(WRITING, READING),
    note="Means over the checkpoints of a run, by their slowest rank.",
)


def metrics_of(summary: CheckpointSummary) -> dict[str, Value]:
    """Return the metrics of a run in display order, with half widths for those that each checkpoint has, too."""
    values = {}
    for metric in CATALOGUE:
        part, _, name = metric.name.partition("_")
        owner, key = (getattr(summary, part), name) if part in _PARTS else (summary, metric.name)
        mean = None if owner is None else getattr(owner, key)
        if mean is not None:
            phase = summary.write if part == "asynchronous" else owner
            checkpoints = phase.checkpoints if isinstance(phase, PhaseSummary) else ()
            per_checkpoint = [getattr(times, key) for times in checkpoints if hasattr(times, key)]
            values[metric.name] = Value(mean, half_width_of(per_checkpoint))
    return values
