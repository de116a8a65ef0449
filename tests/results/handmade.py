"""Runs made by hand that between them have everything a summary can say: what is published of them is pinned.

Their numbers are kept in golden/NAME.json. A change of one is a change of published numbers: it belongs into
CHANGELOG.md, and `python -m tests.results.handmade` then writes the files anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from datagen.storage._request_counts import COUNTERS, FINE, RequestCounts
from dlemu.checkpoints.io_rows import IO_COLUMNS, IO_DTYPE, PROGRESS_DTYPE, READ, WHOLE, WRITE, IoRows
from dlemu.comm.environment import StorageFacts
from dlemu.config import load
from dlemu.config.duration import Duration
from dlemu.jobs.checkpoint.journal import CheckpointJournal, UnderWay
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import Run, make_run
from dlemu.jobs.training.trainer import RunLog
from dlemu.metrics.limit import Scaling
from dlemu.telemetry import DeviceFacts, HostTelemetry, RecorderHead, Series
from tests.checkpoints.models import SMALL_WORDS
from tests.runs import HOST, MS, make_job, make_log, with_blocks, with_evaluation, with_telemetry

GOLDEN = Path(__file__).parent / "golden"
S = 1_000_000_000


def host(
    begin_ns: int, end_ns: int, node: int, values: dict[tuple[str, str, str], float], **changes: Any
) -> HostTelemetry:
    """A host that was read every 100 ms; each reading is its number, 0.1 % more from one to the next."""
    times = np.arange(begin_ns - 300 * MS, end_ns + 300 * MS, 100 * MS)
    series = tuple(Series(*name) for name in values)
    growth = 1 + 0.001 * np.arange(len(times))
    facts: dict[str, Any] = {
        "host": f"node{node}",
        "node": node,
        "boot_id": f"boot {node}",
        "interval_seconds": 0.1,
        "probes": ("cpu", "block"),
        "devices": (),
        "notes": ("said of all", f"said of {node}"),
        "cpu_seconds": 0.25,
        "seconds": 12.5,
        "series": series,
        "which": np.tile(np.arange(len(series), dtype=np.int32), len(times)),
        "time_ns": np.repeat(times, len(series)),
        "value": (growth[:, np.newaxis] * np.array(list(values.values()))).ravel(),
    }
    return HostTelemetry(**(facts | changes))


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


def seen(log: RunLog, **node_changes: Any) -> RunLog:
    """The log with what two recorders read."""
    begin_ns, end_ns = int(log.rows["free_ns"].min()), int(log.rows["met_ns"].max())
    hosts = tuple(
        host(
            begin_ns,
            end_ns,
            node,
            {name: value * (1 + 0.2 * node) for name, value in READINGS.items()},
            devices=DISKS,
            **node_changes,
        )
        for node in range(len(log.journal.hosts))
    )
    return replace(log, telemetry=hosts, journal=log.journal.noting(clock_offsets_ns=((0, 7), (0, 9))))


def worked(log: RunLog, *, cpu: float = 0.3, starved: float = 0.1, served: float = 1.0) -> RunLog:
    """The log with what the workers did and what the storage served of it."""
    took = log.rows["finished_ns"] - log.rows["started_ns"]
    log.rows["cpu_ns"], log.rows["cpu_wait_ns"] = cpu * took, starved * took
    log.rows["storage_bytes"] = served * log.rows["app_bytes"]
    return log


def changed(job: TrainingJob, **sections: dict[str, Any]) -> TrainingJob:
    """The job with settings of its workload changed, section by section."""
    parts = {name: replace(getattr(job.workload, name), **keys) for name, keys in sections.items()}
    return replace(job, workload=replace(job.workload, **parts))


def plain() -> Run:
    job = make_job()
    return make_run(job, make_log(job))


def two_hosts() -> Run:
    job = make_job(ranks=4, epochs=3, **with_blocks(5))
    job = changed(job, metric={"verdict": "au", "exclude_end_steps": 1}, reader={"read_threads": 3})
    log = make_log(job, seed=3, rank_nodes=(0, 0, 1, 1), skew_ns=12_345 * MS)
    late = log.rows["rank"] == 3
    log.rows["wait_ns"][late] += 30 * MS
    log.rows["read_ns"][late] += 25 * MS
    hosts = tuple(replace(each, cpu_limit=2.0 + node) for node, each in enumerate(log.journal.hosts))
    log = replace(log, journal=log.journal.noting(hosts=hosts))
    return make_run(job, seen(worked(log)))


def one_machine() -> Run:
    """Two nodes that are containers of one machine, whose recorders were stopped for a while."""
    job = make_job(ranks=2, epochs=2)
    log = seen(worked(make_log(job, rank_nodes=(0, 1)), served=0.3), boot_id="same", interval_seconds=0.01)
    begin_ns = int(log.rows["free_ns"].min())
    hosts = []
    for each in log.telemetry:
        there = (
            (each.time_ns < begin_ns + 100 * MS) | (each.time_ns > begin_ns + 5600 * MS) if each.node else slice(None)
        )
        hosts.append(replace(each, time_ns=each.time_ns[there], value=each.value[there], which=each.which[there]))
    return make_run(job, replace(log, telemetry=tuple(hosts)))


def evaluated() -> Run:
    job = make_job(epochs=2)
    job = make_job(epochs=2, **with_evaluation(8, job.workload.dataset))
    return make_run(job, with_telemetry(worked(make_log(job, seed=5)), device_share=1.6))


def object_store() -> Run:
    job = make_job(ranks=3)
    job = changed(job, metric={"au": 0.99})
    log = worked(make_log(job, seed=7), cpu=0.0)
    counts = RequestCounts()
    counts.values[: len(COUNTERS)] = 1000 * np.arange(1, len(COUNTERS) + 1)
    counts.first_byte[60 * FINE : 70 * FINE : FINE], counts.last_byte[80 * FINE : 95 * FINE : FINE] = 40, 70
    scaling = Scaling(readers=6, mb_per_second=400.0, more_readers=24, more_mb_per_second=410.0)
    journal = log.journal.noting(requests=tuple(counts.values.tolist()), scaling=scaling, storage=None)
    return make_run(job, replace(log, journal=journal))


def cached() -> Run:
    job = changed(make_job(), metric={"cached": True}, reader={"evict_page_cache": "epochs", "engine": "library"})
    job = changed(job, reader={"preprocess_time": Duration(mean=0.001)}, train={"synchronous": True})
    log = worked(make_log(job), served=0.02)
    return make_run(
        job, replace(log, journal=log.journal.noting(eviction_seconds=(0.5, 0.25), ceiling_au_percent=60.0))
    )


def asynchronous() -> Run:
    job = make_job(ranks=2, **with_blocks(4))
    log = make_log(job, seed=11)
    saved = tuple(
        replace(part, released_ns=part.started_ns + 9 * MS, ended_ns=part.ended_ns + (90 + number) * MS)
        for number, part in enumerate(log.journal.checkpoints)
    )
    return make_run(job, replace(log, journal=log.journal.noting(checkpoints=saved)))


def slow_folder() -> Run:
    job = changed(make_job(ranks=1, epochs=4, steps=60), dataset={"num_subfolders_train": 4})
    log = worked(make_log(job, seed=13), cpu=0.01, starved=0.0)
    for row in log.rows:
        of = job.train_plan.sample_ids(0, int(row["epoch"]), int(row["step"])) % 4
        row["read_ns"] = 2 * MS * len(of) + 9 * MS * int((of == 2).sum())
        row["started_ns"] = row["finished_ns"] - row["read_ns"] - MS
    return make_run(job, log)


def small_and_biased() -> Run:
    job = changed(make_job(ranks=2, steps=4), metric={"verdict": "au", "au": 0.8}, reader={"prefetch_size": 2})
    job = replace(job, workload=replace(job.workload, notes=("a note of the settings",)))
    job = changed(job, reader={"batch_size": 3})  # 2 of 32 samples fill no batch
    log = make_log(job, seed=17)
    log.rows["finished_ns"] -= 3 * MS
    return make_run(job, log)


def slow_host() -> Run:
    """Epochs so long that the first steps matter little; the readers of one host of two are slow, its drive is hot."""
    job = make_job(ranks=2, epochs=2, steps=150)
    log = make_log(job, seed=19, rank_nodes=(0, 1), skew_ns=3 * MS)
    log.rows["wait_ns"][log.rows["wait_ns"] > 100 * MS] -= 299 * MS
    late = log.rows["rank"] == 1
    log.rows["wait_ns"][late] += 20 * MS
    log.rows["finished_ns"] = log.rows["free_ns"] + log.rows["wait_ns"] - MS // 10
    log.rows["started_ns"] = log.rows["finished_ns"] - 60 * MS
    log.rows["read_ns"] = 55 * MS
    return make_run(job, seen(worked(log, cpu=0.05, starved=0.01, served=1.1)))


def busy_host() -> Run:
    """Workers that want cores, on one host that nobody else uses."""
    job = make_job(ranks=1, epochs=2, steps=150)
    log = make_log(job, seed=23)
    log.rows["wait_ns"][log.rows["wait_ns"] > 100 * MS] -= 299 * MS
    log.rows["wait_ns"] += 9 * MS
    log.rows["finished_ns"] = log.rows["free_ns"] + log.rows["wait_ns"] - MS // 10
    log.rows["started_ns"] = log.rows["finished_ns"] - 60 * MS
    hosts = tuple(replace(each, cpu_limit=1.5) for each in log.journal.hosts)
    log = replace(log, journal=log.journal.noting(hosts=hosts, cpu_seconds=(9.0,)))
    return make_run(job, worked(log, cpu=0.5, starved=0.4))


def failed() -> Run:
    job = make_job()
    log = make_log(job)
    journal = log.journal.noting(ended_ns=None, cpu_seconds=(), checkpoints=())
    return make_run(job, RunLog(log.rows[:0], journal), failure="rank 1 (process 7) was killed by SIGKILL")


def failed_later() -> Run:
    job = make_job()
    log = make_log(job)
    return make_run(job, RunLog(log.rows[log.rows["epoch"] == 1], log.journal), failure="the disk is full")


RUNS: dict[str, Callable[[], Run]] = {
    made.__name__: made
    for made in (
        plain,
        two_hosts,
        one_machine,
        evaluated,
        object_store,
        cached,
        asynchronous,
        slow_folder,
        small_and_biased,
        slow_host,
        busy_host,
        failed,
        failed_later,
    )
}


# checkpoints alone

_SMALL = {
    **SMALL_WORDS,
    "checkpoint.checkpoint_folder": "/mnt/drive/saved",
    "checkpoint.num_checkpoints_write": "3",
    "checkpoint.num_checkpoints_read": "2",
}


def _io_rows(ranks: int, order: list[tuple[int, int]], size_bytes: int) -> IoRows:
    """Rows of a rank's two files and its whole part, of each (phase, checkpoint) in order; no two figures are alike."""
    rows = []
    for place, (phase, checkpoint) in enumerate(order):
        for rank in range(ranks):
            begin_ns = (100 + 10 * place) * S + rank * 3 * MS
            took_ns = (2 + place + rank) * S // 2
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
                    "opened_ns": begin_ns + 2 * MS,
                    "moved_ns": begin_ns + took_ns // 2,
                    "synced_ns": begin_ns + took_ns - 2 * MS,
                    "ended_ns": begin_ns + took_ns,
                    "calls": 10,
                    "call_ns": int(0.6 * took_ns),
                    "starved_ns": int(0.03 * took_ns) + rank,
                    "threads": 2,
                    "cpu_ns": int(0.4 * took_ns),
                    "mover_cpu_ns": int(0.3 * took_ns),
                    "mover_cpu_wait_ns": int(0.05 * took_ns),
                    "storage_bytes": int(0.8 * part * size_bytes) if phase == READ else 0,
                    "fsync_ns": int(0.2 * took_ns) + rank if phase == WRITE else 0,
                    "asked_ns": begin_ns - 5 * MS,
                    "waited_ns": 17 * MS * place,
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
    words = _SMALL | {"ranks": str(ranks)} | {f"checkpoint.{key}": text for key, text in settings.items()}
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
        storage=StorageFacts(folder="/mnt/drive", mount="/mnt/drive", file_system="xfs", device="/dev/nvme0n1"),
        clock_offsets_ns=(0, 2 * MS),
        ceiling_gb_per_second=8.0,
        complete=tuple(number for phase, number in order if phase == WRITE),
        removed=(1,),
        eviction_seconds=0.75,
        peak_memory_bytes=(300_000_000, 400_000_000),
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
    facts = CheckpointRunFacts(
        workload=load([f"{key}={value}" for key, value in words.items()]),
        ranks=ranks,
        seed=5,
        started_at="2026-01-02T03:04:05+00:00",
        notes=("a note",),
        journal=journal,
        recorders=tuple(RecorderHead(**_head(each)) for each in telemetry),
        failure=failure,
    )
    return CheckpointRun("results/saved", facts, rows, np.zeros(0, PROGRESS_DTYPE), telemetry)


def _head(each: HostTelemetry) -> dict[str, Any]:
    return {name: getattr(each, name) for name in RecorderHead.__dataclass_fields__}


CHECKPOINT_RUNS: dict[str, Callable[[], CheckpointRun]] = {
    "checkpoints": checkpoint_run,
    "checkpoints_watched": lambda: checkpoint_run(
        ranks=4, watched=True, mtbf_hours="24", interval_seconds="600", randomize_tensor="false", fsync="false"
    ),
    "checkpoints_written": lambda: checkpoint_run(
        order=[(WRITE, 1)],
        mtbf_hours="4",
        journal_changes={"storage": None, "ceiling_gb_per_second": None, "cpu_seconds": (), "peak_memory_bytes": ()},
    ),
    "checkpoints_asynchronous": lambda: checkpoint_run(
        asynchronous="true", time_between_checkpoints="2", snapshot_gb_per_second="0.0001"
    ),
    "checkpoints_in_memory": lambda: checkpoint_run(
        size_bytes=30 << 30,
        journal_changes={
            "storage": StorageFacts(folder="/dev/shm", mount="/dev/shm", file_system="tmpfs", device="tmpfs")
        },
    ),
    "checkpoints_killed": lambda: checkpoint_run(
        failure="the run was killed",
        journal_changes={"under_way": UnderWay(phase="read", checkpoint=2), "ended_ns": None},
    ),
    "checkpoints_failed": lambda: checkpoint_run(
        order=[], failure="no space", journal_changes={"under_way": UnderWay(phase="write", checkpoint=1)}
    ),
}


def published(run: Run | CheckpointRun) -> Any:
    """Return the summary as its file has it; moments as seconds since 1970, whatever the zone of this machine."""
    values = msgspec.json.decode(msgspec.json.encode(run.summary))
    if values["ended_at"] is not None:
        values["ended_at"] = datetime.fromisoformat(values["ended_at"]).timestamp()
    return values


def kept(name: str) -> Any:
    """Return what is pinned of a run."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


if __name__ == "__main__":
    runs: dict[str, Callable[[], Run | CheckpointRun]] = {**RUNS, **CHECKPOINT_RUNS}
    for name, made in runs.items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(published(made()), indent=1) + "\n")
