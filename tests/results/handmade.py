"""Makes results of checkpoints without running them; together they have most of what a summary can contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.io_rows import IO_COLUMNS, IO_DTYPE, READ, WHOLE, WRITE, IoRows
from dlemu.config import load
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import CheckpointJournal, CheckpointRunFacts, UnderWay
from dlemu.jobs.training.plan import TrainingJob
from dlemu.machine.environment import StorageFacts
from dlemu.telemetry import DeviceFacts, HostTelemetry, RecorderHead
from tests.checkpoints.models import SMALL_WORDS
from tests.runs import HOST, MS, host_readings, write_run

S = 1_000_000_000


def host(
    begin_ns: int,
    end_ns: int,
    node: int,
    values: dict[tuple[str, str, str], float],
    grows: float = 0.001,
    **changes: Any,
) -> HostTelemetry:
    """Return a host's telemetry, read every 100 ms; each value grows by 0.1 % (`grows`) per reading."""
    times = np.arange(begin_ns - 300 * MS, end_ns + 300 * MS, 100 * MS)
    growth = 1 + grows * np.arange(len(times), dtype=np.float64)
    facts: dict[str, Any] = {"probes": ("cpu", "block"), "notes": ("said of all", f"said of {node}")}
    facts["cpu_seconds"] = 0.25
    return host_readings(node, times, {name: growth * value for name, value in values.items()}, **(facts | changes))


DISKS = (
    DeviceFacts(probe="block", name="nvme0n1", kind="disk", counted=True, size_bytes=1 << 40, model="fast"),
    DeviceFacts(probe="block", name="dm-0", kind="lvm", counted=False),
)
READINGS = {
    ("cpu", "", "idle_percent"): 20.0,
    ("cpu", "", "iowait_percent"): 4.0,
    ("cpu", "", "throttled_percent"): 3.0,
    ("pressure", "", "memory_some_percent"): 1.5,
    ("process", "rank 0", "cpu_seconds"): 40.0,
    ("process", "rank 1", "cpu_seconds"): 60.0,
    ("block", "nvme0n1", "read_mb_per_second"): 150.0,
    ("block", "nvme0n1", "write_mb_per_second"): 11.0,
    ("block", "nvme0n1", "reads_per_second"): 700.0,
    ("block", "nvme0n1", "mean_queue_depth"): 2.25,
    ("block", "nvme0n1", "busy_percent"): 55.0,
    ("network", "eth0", "link_mb_per_second"): 1250.0,
    ("network", "eth0", "received_mb_per_second"): 200.0,
    ("network", "eth0", "sent_mb_per_second"): 300.0,
    ("network", "lo", "received_mb_per_second"): 999.0,
    ("temperature", "nvme0", "celsius"): 71.0,
    ("temperature", "nvme0", "limit_celsius"): 70.0,
    ("power", "package-0", "watts"): 35.0,
}


def changed(job: TrainingJob, **sections: dict[str, Any]) -> TrainingJob:
    changed_sections = {name: replace(getattr(job.workload, name), **keys) for name, keys in sections.items()}
    return replace(job, workload=replace(job.workload, **changed_sections))


# checkpoints alone

_SMALL = {
    **SMALL_WORDS,
    "checkpoint.checkpoint_folder": "/mnt/drive/saved",
    "checkpoint.num_checkpoints_write": "3",
    "checkpoint.num_checkpoints_read": "2",
}


def _io_rows(ranks: int, order: list[tuple[int, int]], size_bytes: int) -> IoRows:
    """Return rows of each (phase, checkpoint) in order: two files of each rank, and their sum; all values differ."""
    rows = []
    for index, (phase, checkpoint) in enumerate(order):
        for rank in range(ranks):
            begin_ns = (100 + 10 * index) * S + rank * 3 * MS
            took_ns = (2 + index + rank) * S // 2
            for file in (0, 1, WHOLE):
                part = 1.0 if file == WHOLE else 0.25 + 0.5 * file
                row = dict.fromkeys(IO_COLUMNS, 0) | {
                    "rank": rank,
                    "phase": phase,
                    "checkpoint": checkpoint,
                    "file": file,
                    "bytes": int(part * size_bytes) + rank,
                    "began_ns": begin_ns,
                    "started_ns": begin_ns + MS,
                    "moved_ns": begin_ns + took_ns // 2,
                    "synced_ns": begin_ns + took_ns - 2 * MS,
                    "ended_ns": begin_ns + took_ns,
                    "call_ns": int(0.6 * took_ns),
                    "starved_ns": int(0.03 * took_ns) + rank,
                    "threads": 2,
                    "cpu_ns": int(0.4 * took_ns),
                    "mover_cpu_ns": int(0.3 * took_ns),
                    "mover_cpu_wait_ns": int(0.05 * took_ns),
                    "storage_bytes": int(0.8 * part * size_bytes) if phase == READ else 0,
                    "fsync_ns": int(0.2 * took_ns) + rank if phase == WRITE else 0,
                    "asked_ns": begin_ns - 5 * MS,
                    "waited_ns": 17 * MS * index,
                    "released_ns": begin_ns + took_ns // 3,
                }
                rows.append(tuple(row.values()))
    return np.array(rows, IO_DTYPE)


def checkpoint_run(
    *,
    ranks: int = 2,
    failure: str | None = None,
    order: list[tuple[int, int]] | None = None,
    watched: bool = False,
    journal_changes: dict[str, Any] | None = None,
    size_bytes: int = 3 << 30,
    **settings: str,
) -> CheckpointRun:
    all_settings = _SMALL | {"ranks": str(ranks)} | {f"checkpoint.{key}": text for key, text in settings.items()}
    if order is None:
        order = [(WRITE, 1), (WRITE, 2), (WRITE, 3), (READ, 3), (READ, 2)]
    rows = _io_rows(ranks, order, size_bytes)
    nodes = tuple(rank % 2 for rank in range(ranks))
    journal = CheckpointJournal(
        wall_clock_offset_ns=1_767_322_800_000_000_123,
        started_ns=90 * S,
        ended_ns=170 * S,
        hosts=(replace(HOST, host="node0"), replace(HOST, host="node1")),
        rank_nodes=nodes,
        storage=StorageFacts(folder="/mnt/drive", file_system="xfs", device="/dev/nvme0n1"),
        clock_offsets_ns=(0, 2 * MS),
        ceiling_gb_per_second=8.0,
        complete=tuple(number for phase, number in order if phase == WRITE),
        removed=(1,),
        cpu_seconds=(5.5, 6.5),
    ).noting(**(journal_changes or {}))
    telemetry: tuple[HostTelemetry, ...] = ()
    if watched:
        telemetry = tuple(
            host(
                95 * S,
                165 * S,
                node,
                {name: value * (1 + 0.2 * node) for name, value in READINGS.items()},
                devices=DISKS,
            )
            for node in (0, 1)
        )
    workload = load([f"{key}={value}" for key, value in all_settings.items()])
    facts = CheckpointRunFacts(
        workload=workload,
        written=plan_checkpoint(workload.model, workload.checkpoint, ranks).sizes,
        ranks=ranks,
        seed=5,
        started_at="2026-01-02T03:04:05+00:00",
        notes=("a note",),
        journal=journal,
        recorders=tuple(RecorderHead(**_head(each)) for each in telemetry),
        failure=failure,
    )
    return CheckpointRun("results/saved", facts, rows, telemetry)


def _head(telemetry: HostTelemetry) -> dict[str, Any]:
    return {name: getattr(telemetry, name) for name in RecorderHead.__dataclass_fields__}


CHECKPOINT_RUNS: dict[str, Callable[[], CheckpointRun]] = {
    "checkpoints": checkpoint_run,
    "checkpoints_watched": lambda: checkpoint_run(
        ranks=4, watched=True, gpu_mtbf_hours="96", interval_seconds="600", randomize_tensor="false", fsync="false"
    ),
    "checkpoints_failed": lambda: checkpoint_run(
        order=[], failure="no space", journal_changes={"under_way": UnderWay(phase="write", checkpoint=1)}
    ),
}


def saved_checkpoints(folder: Path, name: str = "checkpoints_watched") -> CheckpointRun:
    """Write the folder of one of these runs, and return the run."""
    run = replace(CHECKPOINT_RUNS[name](), folder=str(folder))
    write_run(run)
    return run
