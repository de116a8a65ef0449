"""What a probe found, as frozen, typed values: probe.json. docs/probe.md describes it.

Fields may be added within a schema version; none changes its meaning or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dlemu.comm.environment import HostFacts, StorageFacts
from dlemu.results.answer_files import ANSWER_VERSION

PROBE = "probe.json"

Access = Literal["randread", "read", "randwrite", "write"]
Engine = Literal["fio", "kernel aio", "threads", "batches", "s3"]
"""Who made the requests: fio (libaio), dlemu by the kernel's AIO, dlemu by threads, a loader's readers, or dlemu's S3
client (GET of ranges)."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of requests, from their submission to their completion, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Watts:
    """Mean power of one meter while a cell was measured."""

    source: str
    watts: float
    joules_per_gb: float
    """For each 1e9 bytes."""
    gb_per_second_per_watt: float


@dataclass(frozen=True, kw_only=True)
class ProbeCell:
    """One measurement."""

    access: Access
    size_bytes: int
    """Of a request; of a workload's pattern the mean bytes of a read of one or more samples."""
    depth: int
    """Requests that each job keeps in flight."""
    jobs: int
    """Processes (of fio threads) side by side; of a workload's pattern readers."""
    seconds: float
    mb_per_second: float
    """1e6 bytes/s."""
    iops: float
    latency_ms: Latency | None
    cpu_seconds_per_gb: float
    """Of the processes that made the requests, for each 1e9 bytes."""
    power: tuple[Watts, ...] = ()
    first_byte_ms: Latency | None = None
    """Of GET requests, from sending one to the first byte of its answer; None of others."""
    rounds: tuple[float, ...] = ()
    """MB/s of each round of a write with --steady; the cell's own is the mean of the last five."""
    steady: bool | None = None
    """Of writes: these five were as fast as each other (SNIA's steady state); null where that was not looked at."""
    failed: int = 0
    """GET requests that failed and were made again."""

    @property
    def in_flight(self) -> int:
        """Requests in flight of all jobs."""
        return self.depth * self.jobs


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What the best of the cells would feed, by the null model: speed / (threshold x demand)."""

    workload: str
    accelerator: str
    mb_per_second_each: float
    """At 100 % utilisation."""
    threshold_percent: float
    accelerators: int


@dataclass(frozen=True, kw_only=True)
class ProbeQuestion:
    """The question."""

    target: str
    """Folder, file, device, or s3://BUCKET/..."""
    preset: str = ""
    workload: str = ""
    """Of a workload's own pattern; else empty."""
    overrides: tuple[str, ...] = ()
    seconds: float
    """Of each cell, or round."""
    precondition: int = 0
    """Times that what is written to was written whole before the first cell."""


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """All of it."""

    schema_version: int = ANSWER_VERSION
    complete: bool
    """False while it goes on, or when it was interrupted."""
    question: ProbeQuestion
    engine: Engine
    engine_note: str = ""
    """Why no other."""
    host: HostFacts
    storage: StorageFacts | None = None
    cells: tuple[ProbeCell, ...]
    feeds: tuple[Fed, ...] = ()
    issues: tuple[str, ...] = ()
    started_at: str = ""
    """ISO 8601 with zone."""
    seconds: float = 0.0
    extra: dict[str, str] = field(default_factory=dict)
    """What else is known of the engine: versions."""

    @property
    def best(self) -> ProbeCell | None:
        """The cell with most MB/s; None without any."""
        return max(self.cells, key=lambda cell: cell.mb_per_second, default=None)
