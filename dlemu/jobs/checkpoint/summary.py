"""The types of a checkpoint run's summary.json, which holds every published number.

The docstrings are the documentation of its keys in docs/checkpoints.md. GB are 1e9 bytes, GiB 2^30.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from dlemu.jobs.checkpoint.limits import CheckpointLimit
from dlemu.metrics.checkpoint_rates import CheckpointTimes, OverCheckpoints
from dlemu.metrics.findings import Finding
from dlemu.results.parts import Environment, JobSummary, Requests


class Outcome(StrEnum):
    """The codes of `CheckpointSummary.verdict_code`."""

    WRITTEN = "written"
    READ = "read"
    WRITTEN_AND_READ = "written_and_read"
    INCOMPLETE = "incomplete"
    NOTHING = "nothing"


class Issue(StrEnum):
    """The codes of `CheckpointSummary.findings`."""

    NOTE = "note"
    """A note made before the run; its number `text` is the sentence."""
    TELEMETRY_ENDS_EARLY = "telemetry_ends_early"
    PARTIAL_LEFT = "partial_checkpoint_left"
    IN_MEMORY = "storage_is_memory"
    NO_FSYNC = "no_fsync"
    NOT_STEADY = "not_steady"
    """The last checkpoints were not written at the same speed."""
    NOT_READ = "storage_not_read"
    CONTENT_CEILING = "content_ceiling"


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """One rank's times over all checkpoints of a phase."""

    rank: int
    host: str
    bytes: int
    """Bytes that the rank moves per checkpoint."""
    mean_seconds: float
    max_seconds: float
    max_fsync_seconds: float
    slowest_times: int
    """Number of checkpoints in which this rank was the slowest."""


@dataclass(frozen=True, kw_only=True)
class PhaseSummary:
    """All checkpoints that were written, or all that were read."""

    checkpoints: tuple[CheckpointTimes, ...]
    rank0_gib_per_second: OverCheckpoints | None
    """All ranks' bytes / the time of rank 0, as DLIO reports it."""
    rank0_seconds: OverCheckpoints | None
    slowest_gib_per_second: OverCheckpoints | None
    """All ranks' bytes / the time of the slowest rank, as the rules of MLPerf Storage require."""
    slowest_seconds: OverCheckpoints | None
    wall_gb_per_second: float | None
    """All bytes of all checkpoints / the sum of their wall-clock times, 1e9 bytes/s."""
    fsync_percent: float
    """Share of the ranks' time spent in fsync."""
    from_storage_percent: float | None = None
    """Reading only: share of the bytes from storage, by the kernel's accounting or the devices, whichever is less."""
    device_mb_per_second: float | None = None
    """Throughput of the devices behind the folder meanwhile, 1e6 bytes/s."""
    steady: bool | None = None
    """Writing only: the last five checkpoints had the same speed (SNIA's steady state); null with fewer."""
    cpu_seconds_per_gb: float | None = None
    """CPU time of the ranks per 1e9 bytes, including content generation."""
    content_cpu_seconds_per_gb: float | None = None
    """The part of it that generated content during writing; null for reading."""
    slowest_ranks: tuple[RankTimes, ...] = ()
    """The 16 slowest ranks, the slowest first."""
    limited_by: CheckpointLimit | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What such checkpoints would cost a training run."""

    interval_seconds: float
    """Computing time between two checkpoints (`checkpoint.interval_seconds`)."""
    stall_seconds: float
    """Stall per checkpoint: until the slowest rank is done, or with `asynchronous` its snapshot."""
    percent: float
    """Share of training's time lost to checkpoints."""
    recovery_seconds: float | None = None
    """Time of the slowest rank to read a checkpoint; null if none was read."""
    mtbf_hours: float | None = None
    """Mean time between failures (`checkpoint.mtbf_hours`)."""
    best_interval_seconds: float | None = None
    """Optimal interval for `mtbf_hours`, by Daly's formula; at least the drain."""
    young_interval_seconds: float | None = None
    """The same by Young's simpler formula."""
    wasted_percent: float | None = None
    """Time lost to checkpoints, recomputed work and recovery at `best_interval_seconds`."""
    wasted_percent_now: float | None = None
    """The same at `interval_seconds`."""


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Results of asynchronous checkpoints, which are written while training goes on."""

    snapshot_seconds: float
    """Time of a snapshot: how long training stalls if the checkpoint before is complete."""
    safe_seconds: OverCheckpoints | None
    """From when training was ready for a checkpoint until it was on the storage."""
    drain_seconds: OverCheckpoints | None
    """From when training went on until the checkpoint was on the storage."""
    compute_seconds: float
    """Computing time between two checkpoints of this run (`checkpoint.time_between_checkpoints`)."""
    au_percent: float
    """Accelerator utilisation of this run: share of the time spent computing, reading excluded."""
    shortest_interval_seconds: float
    """Minimum computing time between two checkpoints that reaches an AU of `metric.au`."""
    per_hour: float
    """Checkpoints per hour at that interval."""
    au_threshold_percent: float


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What was written and read, and how."""

    folder: str
    model: str
    format: str
    parameters: int
    files: int
    """Files of one checkpoint, of the emulated ranks."""
    bytes: int
    """Bytes of one checkpoint, of the emulated ranks."""
    tensor_bytes: int
    ranks_of_job: int
    first_rank: int
    tensor: int
    pipeline: int
    data: int
    zero_stage: int
    content: str
    fsync: bool
    odirect: bool
    writers: int
    read_as: str
    readers: int
    verified: bool
    evicted: bool
    kept: int
    """Number of this run's complete checkpoints that are left in the folder."""
    transfer_size: int
    """Maximum bytes of a write or read call."""
    written_by_ranks: int | None
    """Number of ranks that wrote what others read (`reshard`); `format`, `data` and the job's ranks are theirs, too."""
    node_local: bool
    """Whether each host had a folder of its own (`checkpoint.node_local`)."""


@dataclass(frozen=True, kw_only=True)
class PartialCheckpoint:
    """The checkpoint that was being written or read when a run ended early. No rate is computed from it."""

    phase: Literal["write", "read"]
    checkpoint: int
    """Its number, from 1."""
    folder: str
    ranks: int
    """Number of ranks that had finished it."""
    files: int
    """Number of its files, over all ranks, that were complete."""
    of_files: int
    bytes: int
    """Bytes of these files."""
    of_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary(JobSummary):
    """The result of a checkpoint run; complete if every checkpoint was written and read."""

    kind: str = "checkpoint"
    verdict_code: str
    """`written`, `read`, `written_and_read`, `incomplete` or `nothing`."""
    scale: str | None
    ranks_per_host: tuple[int, ...] = ()
    what: CheckpointFacts
    write: PhaseSummary | None = None
    read: PhaseSummary | None = None
    training: TrainingCost | None = None
    asynchronous: Asynchronous | None = None
    ceiling_gb_per_second: float | None = None
    """Rate at which all ranks generate content without storage, 1e9 bytes/s: the upper limit of writing here."""
    peak_memory_mb: float | None = None
    """Maximum private memory of a rank at the end of a checkpoint, 1e6 bytes."""
    cpu_seconds: float | None = None
    total_seconds: float | None = None
    complete_checkpoints: tuple[int, ...] = ()
    """Checkpoints that every rank had written."""
    partial: PartialCheckpoint | None = None
    """Null if the run is complete, or ended between two checkpoints."""
    eviction_seconds: float | None = None
    requests: Requests | None = None
    """Requests to the object store, writing and reading; null for file systems."""
    environment: Environment = field(default_factory=Environment)
    issues: tuple[str, ...] = ()
    """Sentences that a reader of the numbers must know."""
    findings: tuple[Finding, ...] = ()
    """The same in the same order, as codes with their numbers."""

    @property
    def loud_issues(self) -> tuple[str, ...]:
        """The issues that make the numbers misleading: shown first, as warnings."""
        pairs = zip(self.issues, self.findings, strict=False)
        return tuple(issue for issue, finding in pairs if finding.severity == "loud")

    @property
    def title(self) -> str:
        """Workload, scale and ranks, for headings."""
        scale = f" (scale {self.scale})" if self.scale else ""
        return f"{self.workload}{scale}: checkpoints of {self.ranks} rank{'s' * (self.ranks != 1)}"
