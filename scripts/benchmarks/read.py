"""read: how much of the speed of plain preadv reaches the trainer, and what a byte costs in CPU time."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator
from functools import partial

from measuring.runs import section

from benchmarks.bench import Bench, Took
from benchmarks.figure import Figure, Unmeasured, compare, each, ratio_at_least, ratio_at_most
from datagen.errors import UserError
from datagen.formats.format_base import format_named
from datagen.storage.storage_base import FOLDERS, StorageSpec, open_storage

FILES = 8
FILE_BYTES, QUICK_FILE_BYTES = 146_600_628, 16_000_000
"""unet3d's mean sample; and something small enough for a test."""
CROP_BYTES = 2_097_152
READERS = 2
ROUNDS = 6
FROM_DRIVE_ROUNDS = 3
TRANSFER, WHOLE = format_named("npz").transfer_bytes, 1 << 30
"""What a read call of dlemu asks for by itself, and more than any file has."""
FEW_EPOCHS, MANY_EPOCHS = 2, 22
"""Epochs of the two runs whose difference is free of start-up."""
FROM_DRIVE_EPOCHS = 3
"""Of runs that a drive has to serve, and of the shorter one of two: first epochs cost more, as memory is new."""


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
        yield from each(
            [(took[place], took[plain_place]) for took in rounds],
            other,
            (f"bytes/s, {engine} engine", "MB/s", "mb_per_second", speed),
            (f"CPU for each GB, {engine} engine", "s/GB", "cpu_seconds_per_gb", cost),
        )
    yield from _past_the_cache(bench, reading)
    yield from _evicted(bench, reading)


def _past_the_cache(bench: Bench, reading: _Reading) -> Iterator[Figure | Unmeasured]:
    """The same past the page cache: bytes/s with requests of equal size, and what asking for whole files would give."""
    try:
        open_storage(StorageSpec(direct=True)).open(reading.paths[0]).close()
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
    yield from each(
        rounds,
        f"{READERS} with preadv of {TRANSFER >> 10} KiB",
        ("bytes/s, evicted each epoch", "MB/s", "mb_per_second", None),
        ("CPU for each GB, evicted each epoch", "s/GB", "cpu_seconds_per_gb", ratio_at_most(1.3)),
    )


class _Reading:
    """The dataset, and both ways to read it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        dataset = (
            *section("dataset", format="npz", num_files_train=FILES),
            *section("dataset", record_length_bytes=QUICK_FILE_BYTES if bench.quick else FILE_BYTES),
            *section("dataset", record_length_bytes_resize=CROP_BYTES),
        )
        self._settings = (
            *dataset,
            bench.make_dataset("read", *dataset),
            *section("reader", read_threads=READERS, batch_size=1),
            "reader.prefetch_size=4",  # two a worker, PyTorch's default: with one it idles while its batch is fetched
            "train.computation_time=0",
        )
        train = os.path.join(bench.folder, "read", "train")
        self.paths = [os.path.join(train, name) for name in sorted(os.listdir(train))]

    def by_dlemu(self, engine: str) -> Took:
        """Read by `dlemu train`."""
        return self._bench.by_difference(*self._settings, f"reader.engine={engine}", fewer=FEW_EPOCHS, more=MANY_EPOCHS)

    def evicted(self) -> Took:
        """Read by `dlemu train`, which drops the files from the page cache before each epoch."""
        evicting = *self._settings, "reader.evict_page_cache=epochs"
        return self._bench.by_difference(*evicting, fewer=FROM_DRIVE_EPOCHS, more=3 * FROM_DRIVE_EPOCHS)

    def directly(self, transfer: int) -> Took:
        """Read by `dlemu train` past the page cache; what that costs is left out."""
        past = "reader.odirect=true", f"reader.transfer_size={transfer}", f"train.epochs={FROM_DRIVE_EPOCHS}"
        by_epoch = self._bench.train(*self._settings, *past).metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), math.nan)

    def by_plain(self, transfer: int = 0, source: str = "cache") -> Took:
        """Read by plain processes, each its share of the files, at the niceness that dlemu gives its workers.

        Calls ask for `transfer` bytes, 0: for whole files; `source` as `plain_files` has it.
        """
        epochs = MANY_EPOCHS if source == "cache" else FROM_DRIVE_EPOCHS
        settings = "plain_files", "read", epochs, 1, transfer, source
        return self._bench.plain_together([(*settings, *self.paths[n::READERS]) for n in range(READERS)])[0]
