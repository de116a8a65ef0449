"""Make the result folder of a long run without running it, to measure what `dlemu report` and `dlemu audit` take.

    python -m tests.results.long_run FOLDER --ranks 18 --epochs 5 --steps 111112

Steps wait now and then, as on storage that is a little too slow, and every sample is the planned one.
"""

from __future__ import annotations

import argparse

import numpy as np

from datagen.engines import READER_VERSION
from datagen.spec import DatasetSpec
from dlemu.comm.environment import HostFacts, StorageFacts
from dlemu.config.duration import Duration
from dlemu.config.schema import Model, Reader, Train, Workload
from dlemu.jobs.training.measured import Facts, Journal
from dlemu.jobs.training.result import Run
from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.plan.samples import Plan
from dlemu.results.measured import write_run

COMPUTE_NS, READ_NS, BATCH, SAMPLE_BYTES = 1_000_000, 900_000, 1, 150_000
_HOST = HostFacts(host="here", cpu_count=64, cpu_usable=64, memory_bytes=64 << 30)


def long_run(folder: str, *, ranks: int, epochs: int, steps: int, seed: int = 1) -> Run:
    """Return a complete run of so many steps an epoch, in memory (208 bytes a row)."""
    workload = Workload(
        ranks=ranks,
        model=Model(name="long"),
        dataset=DatasetSpec(
            data_folder="data/long", format="npz", num_files_train=ranks * steps, record_length_bytes=SAMPLE_BYTES
        ),
        reader=Reader(batch_size=BATCH, read_threads=4),
        train=Train(epochs=epochs, computation_time=Duration(mean=COMPUTE_NS / 1e9)),
    )
    plan = Plan(
        num_files=ranks * steps,
        num_samples_per_file=1,
        batch_size=BATCH,
        ranks=ranks,
        file_shuffle=False,
        sample_shuffle=False,
        seed=seed,
        seed_change_epoch=True,
    )
    rows = np.zeros((ranks, epochs, steps), STEP_DTYPE)
    random, now_ns = np.random.default_rng(seed), 5_000_000_000
    for epoch in range(epochs):
        now_ns = _fill(rows[:, epoch], epoch + 1, plan, random, now_ns) + 1_000_000
    journal = Journal(
        wall_clock_offset_ns=1_767_322_800_000_000_123,
        started_ns=5_000_000_000,
        hosts=(_HOST,),
        rank_nodes=(0,) * ranks,
        storage=StorageFacts(folder="/data", mount="/", file_system="ext4", device="/dev/vda"),
        ceiling_au_percent=99.5,
        ended_ns=now_ns,
        cpu_seconds=(1.0,) * ranks,
    )
    facts = Facts(
        workload=workload,
        ranks=ranks,
        seed=seed,
        started_at="2026-01-02T03:04:05+00:00",
        plan=plan,
        stream_plan=None,
        reader_version=READER_VERSION,
        num_files_train=ranks * steps,
        num_files_eval=0,
        num_samples_per_file=1,
        total_bytes=ranks * steps * SAMPLE_BYTES,
        batches_ahead=8,
        journal=journal,
    )
    return Run(folder, facts, rows.reshape(-1))


def _fill(rows: StepRows, epoch: int, plan: Plan, random: np.random.Generator, now_ns: int) -> int:
    """Fill one epoch, shape (ranks, steps); return when it was over."""
    ranks, steps = rows.shape
    waits = np.maximum(0, random.normal(0, READ_NS / 4, (ranks, steps))).astype(np.int64)
    waits[:, 0] += 20_000_000
    ends = waits + COMPUTE_NS
    lengths = ends.max(axis=0)
    free = now_ns + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows["rank"], rows["epoch"], rows["block"] = np.arange(ranks)[:, np.newaxis], epoch, 1
    rows["step"], rows["free_ns"], rows["wait_ns"], rows["compute_ns"] = np.arange(steps) + 1, free, waits, COMPUTE_NS
    rows["sync_ns"] = lengths - ends
    rows["slept_ns"] = free + ends + random.integers(20_000, 200_000, (ranks, steps))
    rows["met_ns"] = rows["slept_ns"] + 50_000
    rows["asked_ns"][:, 0], rows["asked_ns"][:, 1:] = now_ns, rows["met_ns"][:, :-1]
    rows["ready_ns"] = free + waits
    rows["got_ns"] = np.maximum(rows["ready_ns"], rows["asked_ns"]) + 20_000
    rows["finished_ns"] = rows["ready_ns"] - random.integers(50_000, 150_000, (ranks, steps))
    rows["started_ns"] = rows["finished_ns"] - READ_NS - random.integers(0, READ_NS, (ranks, steps))
    rows["read_ns"] = (rows["finished_ns"] - rows["started_ns"]) * 8 // 10
    rows["cpu_ns"], rows["cpu_wait_ns"] = rows["read_ns"] // 8, rows["read_ns"] // 100
    rows["decode_ns"], rows["worker"] = rows["read_ns"] // 10, np.arange(steps) % 4
    rows["samples"], rows["read_calls"] = plan.batch_size, plan.batch_size
    rows["app_bytes"] = rows["storage_bytes"] = plan.batch_size * SAMPLE_BYTES
    for rank in range(ranks):
        rows["sample_hash"][rank] = _hashes(plan.batches(rank, epoch, np.arange(steps) + 1)[:, 0])
    return int(free[-1] + lengths[-1])


def _hashes(samples: np.ndarray) -> np.ndarray:
    """Return splitmix64 of each, as `dlemu.plan.samples.hash_samples` sums it."""
    z = samples.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).astype(np.int64)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name, default in (("--ranks", 18), ("--epochs", 5), ("--steps", 111_112)):
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args()
    write_run(long_run(asked.folder, ranks=asked.ranks, epochs=asked.epochs, steps=asked.steps))
