"""The types of probe.json, which docs/probe.md describes; a schema version may add fields, but changes none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from datagen.quantiles import Percentiles
from dlemu.results.answer_files import Answer
from dlemu.results.parts import Environment, EnvironmentFields

PROBE = "probe.json"

Access = Literal["randread", "read", "randwrite", "write"]
Engine = Literal["fio", "threads"]  # sends the requests: fio (libaio), or dlemu with threads


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """A cell to measure: a combination of access pattern, request size, depth and jobs."""

    access: Access
    size_bytes: int
    """Bytes of a request."""
    depth: int
    """Requests that each job keeps in flight."""
    jobs: int
    """Concurrent processes (threads in fio)."""

    @property
    def writes(self) -> bool:
        return self.access.endswith("write")

    @property
    def random(self) -> bool:
        return self.access.startswith("rand")

    @property
    def in_flight(self) -> int:
        """Requests in flight, summed over jobs."""
        return self.depth * self.jobs


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests that one job completed, one array element per request."""

    end_ns: NDArray[np.int64]
    """Completion, by CLOCK_MONOTONIC."""
    latency_ns: NDArray[np.int64]
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Latency(Percentiles):
    """Mean and percentiles of request latency, from submission to completion, in milliseconds."""

    mean: float
    p999: float


@dataclass(frozen=True, kw_only=True)
class ProbeCell(CellSpec):
    """A measured cell."""

    seconds: float
    mb_per_second: float
    """1e6 bytes/s."""
    iops: float
    latency_ms: Latency
    cpu_seconds_per_gb: float
    """CPU time of the processes that sent the requests, per 1e9 bytes."""
    steady: bool | None = None
    """Whether the last five rounds of a write meet SNIA's steady-state criterion; null without --steady."""


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer(EnvironmentFields, Answer):
    """The whole result; its environment has one host, and the storage of the target."""

    complete: bool = field()
    environment: Environment = field()
    target: str
    """Folder or file that was measured."""
    engine: Engine
    cells: tuple[ProbeCell, ...]


def size_name(size_bytes: int) -> str:
    """Return a size in fio's notation (4k, 128k, 1m), or as a fraction of KiB if it is no multiple of 1 KiB."""
    if size_bytes % (1 << 20) == 0:
        return f"{size_bytes >> 20}m"
    return f"{size_bytes >> 10}k" if size_bytes % 1024 == 0 else f"{size_bytes / 1024:.4g} KiB"
