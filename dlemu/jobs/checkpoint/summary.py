"""summary.json of a run of checkpoints: every published number, as one frozen, typed value.

A field's docstring is its documentation: docs/checkpoints.md is made of them. GB are 1e9 bytes, GiB 2^30.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dlemu.jobs.checkpoint.limits import CheckpointLimit
from dlemu.metrics.checkpoint_rates import CheckpointTimes, OverCheckpoints
from dlemu.metrics.findings import Finding
from dlemu.results.parts import Environment, JobSummary, Requests


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """One rank over all checkpoints of a phase."""

    rank: int
    host: str
    bytes: int
    """Of one checkpoint."""
    mean_seconds: float
    max_seconds: float
    max_fsync_seconds: float
    slowest_times: int
    """Checkpoints in which it was the slowest."""


@dataclass(frozen=True, kw_only=True)
class PhaseSummary:
    """All checkpoints that were written, or all that were read."""

    checkpoints: tuple[CheckpointTimes, ...]
    rank0_gib_per_second: OverCheckpoints | None
    """As DLIO reports it: all ranks' bytes over the time of rank 0."""
    rank0_seconds: OverCheckpoints | None
    slowest_gib_per_second: OverCheckpoints | None
    """As the rules of MLPerf Storage ask: over the time of the slowest rank."""
    slowest_seconds: OverCheckpoints | None
    wall_gb_per_second: float | None
    """All bytes of all checkpoints over the sum of their wall-clock times, 1e9 bytes/s."""
    fsync_percent: float
    """Share of the ranks' time in fsync."""
    from_storage_percent: float | None = None
    """Of reading: the storage's share of the bytes by the kernel's accounting or the devices, whichever is less."""
    device_mb_per_second: float | None = None
    """What the devices behind the folder wrote (or read) meanwhile, 1e6 bytes/s."""
    steady: bool | None = None
    """Of writing: the last five checkpoints were as fast as each other (SNIA's steady state); null of fewer."""
    cpu_seconds_per_gb: float | None = None
    """CPU time of the ranks per 1e9 bytes, making the content included."""
    content_cpu_seconds_per_gb: float | None = None
    """Of it, what making the content took while it was written; of reading null."""
    slowest_ranks: tuple[RankTimes, ...] = ()
    """Of the ranks, the slowest first, 16 at most."""
    limited_by: CheckpointLimit | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What such checkpoints cost a training."""

    interval_seconds: float
    """Time that is computed between two of them (`checkpoint.interval_seconds`)."""
    stall_seconds: float
    """Time that training stalls for one: of the slowest rank; asynchronous: until it goes on."""
    percent: float
    """Share of the time that they take."""
    recovery_seconds: float | None = None
    """Time to read one back, of the slowest rank; None when none was read."""
    mtbf_hours: float | None = None
    best_interval_seconds: float | None = None
    """By Daly, for that mean time between failures."""
    young_interval_seconds: float | None = None
    """By Young's simpler formula."""
    wasted_percent: float | None = None
    """Share of the time lost at that best interval to checkpoints, work done again, and recovery."""
    wasted_percent_now: float | None = None
    """The same at `interval_seconds`."""


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Of checkpoints that go to the storage while training goes on."""

    snapshot_seconds: float
    """Mean time until training went on, had the one before been done."""
    safe_seconds: OverCheckpoints | None
    """From the moment training wanted a checkpoint until it was on the storage."""
    drain_seconds: OverCheckpoints | None
    """From the moment training went on until it was there."""
    compute_seconds: float
    """Between two of them in this run (`checkpoint.time_between_checkpoints`)."""
    au_percent: float
    """Share of the time in which accelerators computed in this run, reading excluded."""
    shortest_interval_seconds: float
    """Least time to compute between two that leaves an AU of `metric.au`."""
    per_hour: float
    """Checkpoints an hour at that interval."""
    au_threshold_percent: float


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What was written and read."""

    folder: str
    model: str
    format: str
    parameters: int
    files: int
    """Of one checkpoint, by the ranks that took part."""
    bytes: int
    """Of one checkpoint."""
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
    """Complete checkpoints of this run that were left in the folder."""
    transfer_size: int | None = None
    """Most bytes of a write or read call; null in results of older versions."""


@dataclass(frozen=True, kw_only=True)
class PartialCheckpoint:
    """The checkpoint that a run was at when it ended early. No rate is computed of it."""

    phase: Literal["write", "read"]
    checkpoint: int
    """Its number, from 1."""
    folder: str
    ranks: int
    """Of the ranks, those that were done with it."""
    files: int
    """Of its files, by all ranks, those that were whole."""
    of_files: int
    bytes: int
    """Of these files."""
    of_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary(JobSummary):
    """The result of a run of checkpoints, complete when every one was written and read."""

    kind: str = "checkpoint"
    verdict_code: str | None = None
    """`written`, `read`, `written_and_read`, `incomplete` or `nothing`; None in results of older versions."""
    scale: str | None
    ranks_per_host: tuple[int, ...] = ()
    what: CheckpointFacts
    write: PhaseSummary | None = None
    read: PhaseSummary | None = None
    training: TrainingCost | None = None
    asynchronous: Asynchronous | None = None
    ceiling_gb_per_second: float | None = None
    """Rate at which all ranks made content without storage, 1e9 bytes/s: no storage can show more here."""
    peak_memory_mb: float | None = None
    """Most private memory of a rank after a checkpoint, 1e6 bytes."""
    cpu_seconds: float | None = None
    total_seconds: float | None = None
    complete_checkpoints: tuple[int, ...] = ()
    """Those that every rank had written."""
    partial: PartialCheckpoint | None = None
    """Null for a run that is complete, or ended between two checkpoints."""
    eviction_seconds: float | None = None
    requests: Requests | None = None
    """Of writing and reading them in an object store; null elsewhere."""
    environment: Environment = field(default_factory=Environment)
    issues: tuple[str, ...] = ()
    """What a reader of the numbers must know, as sentences."""
    findings: tuple[Finding, ...] = ()
    """The same in the same order, as codes with their numbers; empty in results of older versions."""

    @property
    def loud_issues(self) -> tuple[str, ...]:
        """Those without which nobody may read the numbers."""
        pairs = zip(self.issues, self.findings, strict=False)
        return tuple(issue for issue, finding in pairs if finding.severity == "loud")

    @property
    def title(self) -> str:
        """What ran, in a few words."""
        scale = f" (scale {self.scale})" if self.scale else ""
        return f"{self.workload}{scale}: checkpoints of {self.ranks} rank{'s' * (self.ranks != 1)}"
