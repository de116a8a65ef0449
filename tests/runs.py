"""Makes complete training runs without running them: a job without a dataset, and its step rows and telemetry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datagen.inspection import Dataset
from datagen.layout import layouts
from datagen.spec import DatasetSpec
from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.config.duration import Duration
from dlemu.config.schema import Checkpoint, Evaluation, Model, Reader, Train, Workflow, Workload
from dlemu.dlio.config import DlioFolders
from dlemu.jobs.training import result as training
from dlemu.jobs.training.measured import Journal
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import Run, RunLog
from dlemu.jobs.training.steplog import EVALUATION, STEP_DTYPE, TRAINING, StepRows
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.plan.samples import RankPlan, hash_samples
from dlemu.results.kinds import kind_of
from dlemu.results.measured import MeasuredRun, write_measured, write_summary
from dlemu.telemetry import DeviceFacts, HostTelemetry, Series

Floats = NDArray[np.float64]
T = TypeVar("T")

MS = 1_000_000
COMPUTE_NS = 50 * MS
SAMPLE_BYTES = 1_000_000

HOST = HostFacts(
    host="here",
    processor="one of the fast ones",
    cpu_count=8,
    cpu_usable=4,
    cpu_limit=None,
    memory_bytes=64 << 30,
    kernel="6.1",
    dlemu="0",
    packages={"python": "3.11.2", "numpy": "2"},
)


def present(value: T | None) -> T:
    assert value is not None
    return value


def make_job(
    *, ranks: int = 2, epochs: int = 2, steps: int = 12, folder: str = "results/x", **changes: Any
) -> TrainingJob:
    """Return a job of `steps` steps per epoch, with batches of 4; `changes` replace sections of its workload."""
    files = ranks * steps * 4
    workload = Workload(
        ranks=ranks,
        model=Model(name="handmade", model_size_bytes=3 << 20),
        dataset=DatasetSpec(
            data_folder="data/handmade", format="npz", num_files_train=files, record_length_bytes=SAMPLE_BYTES
        ),
        reader=Reader(batch_size=4, batch_size_eval=2, read_threads=2, file_shuffle="seed"),
        train=Train(epochs=epochs, computation_time=Duration(mean=COMPUTE_NS / 1e9)),
    )
    workload = replace(workload, **changes)
    train, valid = layouts(workload.dataset)
    dataset = Dataset(
        spec=workload.dataset,
        train=train,
        valid=valid if valid.num_files else None,
        manifest=None,
        max_file_bytes=SAMPLE_BYTES,
        max_sample_bytes=SAMPLE_BYTES,
        total_bytes=files * SAMPLE_BYTES,
    )
    return TrainingJob(
        workload=workload, ranks=ranks, dataset=dataset, seed=123, folder=folder, started_at="2026-01-02T03:04:05+00:00"
    )


def cut(job: TrainingJob, steps: int) -> TrainingJob:
    train = replace(job.workload.train, total_training_steps=steps)
    return replace(job, workload=replace(job.workload, train=train))


def dlio_place(folder: Path) -> DlioFolders:
    return DlioFolders(folder=str(folder), config_folder=str(folder / "dlio_config"))


def with_blocks(every: int) -> dict[str, Any]:
    """Return sections of a workload with a checkpoint after every `every` steps."""
    return {"workflow": Workflow(checkpoint=True), "checkpoint": Checkpoint(steps_between_checkpoints=every)}


def with_evaluation(files: int, dataset: DatasetSpec) -> dict[str, Any]:
    """Return sections of a workload with an evaluation after each epoch."""
    return {
        "workflow": Workflow(evaluation=True),
        "evaluation": Evaluation(eval_time=Duration(mean=0.01)),
        "dataset": replace(dataset, num_files_eval=files),
    }


def make_run(job: TrainingJob, log: RunLog, failure: str | None = None) -> Run:
    """Return the run of a job from its log; `failure` is the reason if it is incomplete."""
    run: Run = training.TRAINING.run_from_log(job.folder, training.TRAINING.facts(job), log, failure)
    return run


def make_log(job: TrainingJob, *, seed: int = 0, rank_nodes: tuple[int, ...] = (), skew_ns: int = 0) -> RunLog:
    """Return the log of a complete run that oversleeps and waits for data; nodes' clocks differ by `skew_ns`."""
    random = np.random.default_rng(seed)
    nodes = rank_nodes or (0,) * job.ranks
    start_ns = now_ns = 5_000 * MS
    rows, saved = [], []
    for epoch in job.schedule:
        step = 1
        for block in epoch.blocks:
            part, now_ns = _block(job, random, (TRAINING, epoch.number, block.number), (step, block.steps), now_ns)
            rows.append(part)
            step += block.steps
            if block.checkpoint:
                saved.append(_saved(job, epoch.number, block.number, now_ns))
                now_ns = saved[-1].ended_ns + MS
        if epoch.evaluation:
            assert job.valid_plan is not None
            steps = job.valid_plan.steps_per_epoch
            part, now_ns = _block(job, random, (EVALUATION, epoch.number, 1), (1, steps), now_ns)
            rows.append(part)
    journal = Journal(
        wall_clock_offset_ns=1_767_322_800_000_000_123,
        started_ns=start_ns,
        hosts=tuple(replace(HOST, host=f"node{node}") for node in sorted(set(nodes))),
        rank_nodes=nodes,
        storage=StorageFacts(folder="/data", file_system="ext4", device="/dev/vda"),
        ceiling_au_percent=99.5,
        checkpoints=tuple(saved),
        ended_ns=now_ns,
        cpu_seconds=(1.5,) * job.ranks,
    )
    return RunLog(_skewed(np.concatenate(rows), nodes, skew_ns), journal)


def whole_run(**job: Any) -> Run:
    """Return a complete run without telemetry; the arguments are those of `make_job`."""
    whole_job = make_job(**job)
    return make_run(whole_job, make_log(whole_job))


def host_readings(
    node: int, times: NDArray[np.int64], values: Mapping[tuple[str, str, str], float | Floats], **changes: Any
) -> HostTelemetry:
    """Return a host's telemetry at these times; a series has the same value at all times, or one for each."""
    columns = [np.broadcast_to(np.asarray(value, np.float64), len(times)) for value in values.values()]
    facts: dict[str, Any] = {
        "host": f"node{node}",
        "node": node,
        "boot_id": f"boot {node}",
        "interval_seconds": 0.1,
        "probes": tuple(sorted({name[0] for name in values})),
        "devices": (),
        "notes": (),
        "cpu_seconds": 0.01,
        "series": tuple(Series(*name) for name in values),
        "which": np.tile(np.arange(len(values), dtype=np.int32), len(times)),
        "time_ns": np.repeat(times, len(values)),
        "value": np.array(columns).reshape(len(values), len(times)).T.ravel(),
    }
    return HostTelemetry(**(facts | changes))


def with_telemetry(log: RunLog, *, device_share: float = 1.0, interval_ns: int = 500 * MS) -> RunLog:
    """Return the log with telemetry of each host: a drive that served a share of all bytes, and a power of 40 W."""
    ends = log.rows["free_ns"].min() - interval_ns, log.rows["met_ns"].max() + interval_ns
    epochs = [log.rows[log.rows["epoch"] == epoch] for epoch in np.unique(log.rows["epoch"])]
    edges = [moment for epoch in epochs for moment in (epoch["free_ns"].min() - 1000, epoch["met_ns"].max() + 1000)]
    times = np.union1d(np.arange(ends[0], ends[1], interval_ns), edges)
    mb = device_share * log.rows["app_bytes"].sum() / 1e6
    rate = mb / ((log.rows["met_ns"].max() - log.rows["free_ns"].min()) / 1e9) / len(log.journal.hosts)
    device = DeviceFacts(
        probe="block",
        name="nvme0n1",
        kind="disk",
        counted=True,
        size_bytes=1 << 40,
        model="fast",
        read_ahead_bytes=128 << 10,
        requests_counted=True,
    )
    values = {("block", "nvme0n1", "read_mb_per_second"): rate, ("power", "package-0", "watts"): 40.0}
    facts = {"devices": (device,), "notes": ("a note",), "interval_seconds": interval_ns / 1e9}
    hosts = [host_readings(node, times, values, host=host.host, **facts) for node, host in enumerate(log.journal.hosts)]
    return RunLog(log.rows, log.journal, tuple(hosts))


def _saved(job: TrainingJob, epoch: int, block: int, now_ns: int) -> SavedCheckpoint:
    size_bytes = job.workload.model.model_size_bytes
    return SavedCheckpoint(
        epoch=epoch, block=block, bytes=size_bytes, started_ns=now_ns + MS, ended_ns=now_ns + 31 * MS
    )


def _block(
    job: TrainingJob, random: np.random.Generator, label: tuple[int, int, int], numbers: tuple[int, int], now_ns: int
) -> tuple[StepRows, int]:
    phase, epoch, block = label
    first, steps = numbers
    rows = np.zeros((steps, job.ranks), STEP_DTYPE)
    plan = job.train_plan if phase == TRAINING else job.valid_plan
    assert plan is not None
    free_ns, asked_ns = now_ns, np.full(job.ranks, now_ns)
    for index, row in enumerate(rows):
        wait_ns = random.integers(0, 8 * MS, job.ranks) + (300 * MS if index == 0 else 0)
        end_ns = free_ns + wait_ns + COMPUTE_NS
        row["rank"], row["phase"], row["epoch"], row["block"] = np.arange(job.ranks), phase, epoch, block
        row["step"], row["free_ns"], row["wait_ns"], row["compute_ns"] = first + index, free_ns, wait_ns, COMPUTE_NS
        row["sync_ns"] = end_ns.max() - end_ns
        row["ready_ns"] = free_ns + wait_ns
        row["asked_ns"], row["got_ns"] = asked_ns, np.maximum(row["ready_ns"], asked_ns) + 20_000
        row["slept_ns"] = end_ns + random.integers(50_000, 900_000, job.ranks)
        row["met_ns"] = row["slept_ns"].max() + random.integers(100_000, 400_000, job.ranks)
        row["started_ns"], row["finished_ns"] = row["ready_ns"] - 9 * MS, row["ready_ns"] - 200_000
        row["read_ns"], row["samples"], row["read_calls"] = 7 * MS, plan.batch_size, plan.batch_size
        row["app_bytes"] = plan.batch_size * (SAMPLE_BYTES + 500)
        row["sample_hash"] = [
            hash_samples(RankPlan(plan, rank).sample_ids(epoch, first + index)) for rank in range(job.ranks)
        ]
        free_ns, asked_ns = int(end_ns.max()), row["met_ns"].copy()
    flat: StepRows = rows.reshape(-1)
    return flat, int(asked_ns.max()) + MS


def _skewed(rows: StepRows, nodes: tuple[int, ...], skew_ns: int) -> StepRows:
    """Shift the stamps of each rank to the clock of its node."""
    for name in ("free_ns", "asked_ns", "got_ns", "slept_ns", "met_ns", "ready_ns", "started_ns", "finished_ns"):
        rows[name] += skew_ns * np.array(nodes)[rows["rank"]]
    return rows


def kind_held(folder: Path) -> str:
    """Return the kind of the result in a folder, even if damaged; empty if there is none."""
    kind = kind_of(str(folder))
    return "" if kind is None else kind.name


def write_run(run: MeasuredRun) -> None:
    """Write all files of a run to its folder, summary.json last."""
    write_measured(run)
    write_summary(run)
