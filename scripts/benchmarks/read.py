"""read: how much of the speed of plain preadv reaches the trainer, and what a byte costs in CPU time."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, compare, ratio_at_least, ratio_at_most
from benchmarks.processes import run_together
from dlemu.config.schema import Reader

FILES = 8
FILE_BYTES, QUICK_FILE_BYTES = 146_600_628, 16_000_000
"""unet3d's mean sample; and something small enough for a test."""
CROP_BYTES = 2_097_152
READERS = 2
ROUNDS = 6
FEW_EPOCHS, MANY_EPOCHS = 2, 22
"""Epochs of the two runs whose difference is free of start-up."""


class Took(NamedTuple):
    """What reading took, free of start-up."""

    mb_per_second: float
    """From the second epoch on: the plain readers, too, go through the files once before they begin to count."""
    cpu_seconds_per_gb: float


def measure(bench: Bench) -> Iterator[Figure]:
    """Page cache warm, nothing computes, one rank with two workers, beside two processes that only read."""
    reading = _Reading(bench)
    rounds = bench.interleaved(
        ROUNDS, partial(reading.by_dlemu, "fast"), reading.by_plain, partial(reading.by_dlemu, "library")
    )
    beside = f"{READERS} processes with preadv"
    for engine, place, speed, cost in (
        ("fast", 0, ratio_at_least(0.85), ratio_at_most(1.3)),
        ("library", 2, None, None),
    ):
        pairs = [(took[place], took[1]) for took in rounds]
        speeds = [(own.mb_per_second, plain.mb_per_second) for own, plain in pairs]
        costs = [(own.cpu_seconds_per_gb, plain.cpu_seconds_per_gb) for own, plain in pairs]
        yield compare(f"bytes/s, {engine} engine", "MB/s", speeds, beside, speed)
        yield compare(f"CPU for each GB, {engine} engine", "s/GB", costs, beside, cost)


class _Reading:
    """The dataset, and both ways to read it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        dataset = (
            "dataset.format=npz",
            f"dataset.num_files_train={FILES}",
            f"dataset.record_length_bytes={QUICK_FILE_BYTES if bench.quick else FILE_BYTES}",
            f"dataset.record_length_bytes_resize={CROP_BYTES}",
        )
        self._settings = (
            *dataset,
            bench.make_dataset("read", *dataset),
            f"reader.read_threads={READERS}",
            "reader.batch_size=1",
            "reader.prefetch_size=4",  # two a worker, PyTorch's default: with one it idles while its batch is fetched
            "train.computation_time=0",
        )
        train = os.path.join(bench.folder, "read", "train")
        self._paths = [os.path.join(train, name) for name in sorted(os.listdir(train))]

    def by_dlemu(self, engine: str) -> Took:
        """Read by `dlemu train`."""
        few, many = (
            self._bench.train(*self._settings, f"reader.engine={engine}", f"train.epochs={epochs}")
            for epochs in (FEW_EPOCHS, MANY_EPOCHS)
        )
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        by_epoch = many.metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), (many.cpu_seconds - few.cpu_seconds) / more_gb)

    def by_plain(self) -> Took:
        """Read by plain processes, each its share of the files, at the niceness that dlemu gives its workers."""
        commands = [
            self._bench.module("plain_read", str(MANY_EPOCHS), "1", *self._paths[first::READERS])
            for first in range(READERS)
        ]
        readers_took = [json.loads(output) for output in run_together(commands, niceness=Reader().nice)]
        return Took(
            sum(took["bytes"] / took["wall_seconds"] for took in readers_took) / MB,
            sum(took["cpu_seconds"] for took in readers_took) / (sum(took["bytes"] for took in readers_took) / 1e9),
        )
