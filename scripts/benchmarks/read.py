"""read: how much of the speed of plain preadv reaches the trainer, and what a byte costs in CPU time."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, Unmeasured, compare, ratio_at_least, ratio_at_most
from benchmarks.processes import run_together
from datagen.errors import UserError
from datagen.formats.format_base import library_reads
from datagen.storage.posix import DirectReader
from datagen.storage.storage_base import FOLDERS, open_storage
from dlemu.config.schema import Reader

FILES = 8
FILE_BYTES, QUICK_FILE_BYTES = 146_600_628, 16_000_000
"""unet3d's mean sample; and something small enough for a test."""
CROP_BYTES = 2_097_152
READERS = 2
ROUNDS = 6
FROM_DRIVE_ROUNDS = 3
TRANSFER, WHOLE = library_reads("npz").transfer_bytes, 1 << 30
"""What a read call of dlemu asks for by itself, and more than any file has."""
FEW_EPOCHS, MANY_EPOCHS = 2, 22
"""Epochs of the two runs whose difference is free of start-up."""
FROM_DRIVE_EPOCHS = 3
"""Of runs that a drive has to serve; the shorter one of two has 1."""


class Took(NamedTuple):
    """What reading took, free of start-up."""

    mb_per_second: float
    """From the second epoch on: the plain readers, too, go through the files once before they begin to count."""
    cpu_seconds_per_gb: float


def measure(bench: Bench) -> Iterator[Figure | Unmeasured]:
    """Page cache warm, nothing computes, one rank with two workers, beside two processes that only read."""
    reading = _Reading(bench)
    rounds = bench.interleaved(
        ROUNDS,
        partial(reading.by_dlemu, "fast"),
        reading.by_plain,
        partial(reading.by_dlemu, "library"),
        partial(reading.by_plain, TRANSFER),
    )
    beside = f"{READERS} processes with preadv"
    equal = f"{READERS} with preadv of {TRANSFER >> 10} KiB"
    for engine, place, plain_place, other, speed, cost in (
        ("fast", 0, 1, beside, ratio_at_least(0.85), ratio_at_most(1.3)),
        ("fast", 0, 3, equal, None, None),
        ("library", 2, 1, beside, None, None),
    ):
        pairs = [(took[place], took[plain_place]) for took in rounds]
        speeds = [(own.mb_per_second, plain.mb_per_second) for own, plain in pairs]
        costs = [(own.cpu_seconds_per_gb, plain.cpu_seconds_per_gb) for own, plain in pairs]
        yield compare(f"bytes/s, {engine} engine", "MB/s", speeds, other, speed)
        yield compare(f"CPU for each GB, {engine} engine", "s/GB", costs, other, cost)
    yield from _past_the_cache(bench, reading)
    yield from _evicted(bench, reading)


def _past_the_cache(bench: Bench, reading: _Reading) -> Iterator[Figure | Unmeasured]:
    """The same past the page cache: bytes/s with requests of equal size, and what asking for whole files would give."""
    try:
        DirectReader(reading.paths[0]).close()
    except UserError as error:
        yield Unmeasured(what="bytes/s, O_DIRECT", who="the file system", why=str(error))
        return
    rounds = bench.interleaved(
        FROM_DRIVE_ROUNDS,
        partial(reading.directly, TRANSFER),
        partial(reading.by_plain, TRANSFER, "direct"),
        partial(reading.directly, WHOLE),
    )
    equal = f"{READERS} with preadv of {TRANSFER >> 10} KiB"
    for what, place in ((f"bytes/s, O_DIRECT of {TRANSFER >> 10} KiB", 0), ("bytes/s, O_DIRECT of whole files", 2)):
        pairs = [(took[place].mb_per_second, took[1].mb_per_second) for took in rounds]
        yield compare(what, "MB/s", pairs, equal, None)


def _evicted(bench: Bench, reading: _Reading) -> Iterator[Figure | Unmeasured]:
    """The same through a page cache that each epoch begins without the files, with requests of equal size."""
    kind = open_storage(FOLDERS).memory_kind(os.path.dirname(reading.paths[0]))
    if kind:
        yield Unmeasured(what="bytes/s, evicted each epoch", who="the file system", why=f"on {kind} files are memory")
        return
    rounds = bench.interleaved(FROM_DRIVE_ROUNDS, reading.evicted, partial(reading.by_plain, TRANSFER, "evicted"))
    equal = f"{READERS} with preadv of {TRANSFER >> 10} KiB"
    for what, unit, field, wanted in (
        ("bytes/s, evicted each epoch", "MB/s", "mb_per_second", None),
        ("CPU for each GB, evicted each epoch", "s/GB", "cpu_seconds_per_gb", ratio_at_most(1.3)),
    ):
        pairs = [(getattr(own, field), getattr(plain, field)) for own, plain in rounds]
        yield compare(what, unit, pairs, equal, wanted)


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
        self.paths = [os.path.join(train, name) for name in sorted(os.listdir(train))]

    def by_dlemu(self, engine: str) -> Took:
        """Read by `dlemu train`."""
        return self._by_difference(FEW_EPOCHS, MANY_EPOCHS, f"reader.engine={engine}")

    def evicted(self) -> Took:
        """Read by `dlemu train`, which drops the files from the page cache before each epoch."""
        return self._by_difference(1, FROM_DRIVE_EPOCHS, "reader.evict_page_cache=epochs")

    def _by_difference(self, fewer: int, more: int, setting: str) -> Took:
        """Read in two runs of so many epochs, whose difference is free of start-up."""
        few, many = (self._bench.train(*self._settings, setting, f"train.epochs={epochs}") for epochs in (fewer, more))
        more_gb = (many.metrics["app_bytes"] - few.metrics["app_bytes"]) / 1e9
        by_epoch = many.metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), (many.cpu_seconds - few.cpu_seconds) / more_gb)

    def directly(self, transfer: int) -> Took:
        """Read by `dlemu train` past the page cache; what that costs is left out."""
        past = "reader.odirect=true", f"reader.transfer_size={transfer}", f"train.epochs={FROM_DRIVE_EPOCHS}"
        by_epoch = self._bench.train(*self._settings, *past).metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), math.nan)

    def by_plain(self, transfer: int = 0, source: str = "cache") -> Took:
        """Read by plain processes, each its share of the files, at the niceness that dlemu gives its workers.

        Calls ask for `transfer` bytes, 0: for whole files; `source` as `plain_read` has it.
        """
        epochs = MANY_EPOCHS if source == "cache" else FROM_DRIVE_EPOCHS
        settings = str(epochs), "1", str(transfer), source
        commands = [
            self._bench.module("plain_read", *settings, *self.paths[first::READERS]) for first in range(READERS)
        ]
        readers_took = [json.loads(output) for output in run_together(commands, niceness=Reader().nice)]
        return Took(
            sum(took["bytes"] / took["wall_seconds"] for took in readers_took) / MB,
            sum(took["cpu_seconds"] for took in readers_took) / (sum(took["bytes"] for took in readers_took) / 1e9),
        )
