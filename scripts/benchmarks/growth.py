"""growth: how the cost of reading grows with the size of records; and start-up and memory with the workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from measuring.runs import section

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, alone, value_at_most
from benchmarks.live import seconds_to_first_step
from benchmarks.processes import tree_pss_bytes

RECORDS = ((4 << 10, 512, 100), (64 << 10, 512, 80), (1 << 20, 192, 50), (4 << 20, 48, 60))
"""Bytes of a record, one per file; number of files; epochs of the longer run (the shorter has FEW_EPOCHS)."""
QUICK_RECORDS = ((4 << 10, 16, 4), (1 << 20, 16, 4))
FEW_EPOCHS = 2
WORKERS = (1, 2, 4, 8, 16)
QUICK_WORKERS = (1, 2)
WORKERS_BATCH, WORKERS_BYTES, SETTLED_SECONDS = 4, 64 << 10, 2.0
"""Runs with increasing numbers of workers: samples of a batch, their bytes, and time until memory is sampled."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Fit lines to the costs of runs with increasing sizes of records, and increasing numbers of workers."""
    sizes = QUICK_RECORDS if bench.quick else RECORDS
    datasets = [_Records(bench, *size) for size in sizes]
    mb = [dataset.mb for dataset in datasets]
    lines = [_line(mb, [dataset.cpu_us() for dataset in datasets]) for _ in range(bench.rounds(3))]
    yield alone("CPU of a sample, however small", "us", [line.intercept for line in lines], value_at_most(100))
    yield alone("CPU for each MB of a sample", "us", [line.slope for line in lines], value_at_most(400))
    workers = QUICK_WORKERS if bench.quick else WORKERS
    rounds = [[_start(bench, count) for count in workers] for _ in range(bench.rounds(3))]
    for column, (what, unit, limit) in enumerate((("to the first step", "ms", 100), ("memory (PSS)", "MB", 20))):
        slopes = [_line(workers, [run[column] for run in runs]).slope for runs in rounds]
        yield alone(f"{what}, for each worker more", unit, slopes, value_at_most(limit))


class _Line(NamedTuple):
    intercept: float
    slope: float


def _line(x: tuple[int, ...] | list[float], costs: list[float]) -> _Line:
    """Return the least-squares fit of relative errors, because costs differ by orders of magnitude."""
    slope, intercept = np.polyfit(x, costs, 1, w=1 / np.asarray(costs))
    return _Line(float(intercept), float(slope))


class _Records:
    """A dataset of records of one size, read from the page cache by the pytorch loader with 2 workers."""

    def __init__(self, bench: Bench, size_bytes: int, files: int, epochs: int) -> None:
        self._bench, self._files, self._epochs = bench, files, epochs
        self.mb = size_bytes / MB
        dataset = section("dataset", format="npy", num_files_train=files, record_length_bytes=size_bytes)
        self._settings = (
            *dataset,
            bench.make_dataset(f"growth-{size_bytes}", *dataset),
            *section("reader", read_threads=2, batch_size=8),
            "train.computation_time=0",
            "metric.ceiling_seconds=0",
        )

    def cpu_us(self) -> float:
        """Return the CPU time of all processes per sample, without start-up: by the difference of two runs."""
        few, many = (
            self._bench.train(*self._settings, f"train.epochs={epochs}").cpu_seconds
            for epochs in (FEW_EPOCHS, self._epochs)
        )
        return max(0.1, 1e6 * (many - few) / (self._files * (self._epochs - FEW_EPOCHS)))


def _start(bench: Bench, workers: int) -> tuple[float, float]:
    """Return the time from the command to the first step of a rank with these workers, ms, and their memory, MB."""
    dataset = ("dataset.format=npy", "dataset.num_files_train=512", f"dataset.record_length_bytes={WORKERS_BYTES}")
    settings = (
        *dataset,
        bench.make_dataset("growth-workers", *dataset),
        *section("reader", read_threads=workers, batch_size=WORKERS_BATCH),
        "train.computation_time=0.1",
        "metric.ceiling_seconds=0",
    )
    with bench.training(*settings) as (child, results):
        seconds = seconds_to_first_step(child, results, 1)
        time.sleep(SETTLED_SECONDS)
        return 1e3 * seconds, tree_pss_bytes(child.tree()) / MB
