"""A probe without running it."""

from __future__ import annotations

from typing import Any

from dlemu.jobs.probe.result import Latency, ProbeAnswer, ProbeCell, ProbeQuestion
from tests.runs import make_job


def probed(**cells: Any) -> ProbeAnswer:
    host = make_job().workload  # any facts of a host do: the tables don't show them
    made = tuple(
        ProbeCell(
            access="randread",
            size_bytes=size << 10,
            depth=1,
            jobs=workers,
            seconds=1.0,
            mb_per_second=1000.0 * workers,
            iops=1e6 * workers / size,
            latency_ms=Latency(mean=1.3, p50=1, p90=1, p99=1, p999=1, max=1),
            cpu_seconds_per_gb=0.1,
        )
        for size in (4, 1024)
        for workers in (1, 8)
    )
    question = ProbeQuestion(target="/mnt/new", seconds=1.0)
    return ProbeAnswer(complete=True, question=question, engine="fio", host=host, cells=made)  # type: ignore[arg-type]
