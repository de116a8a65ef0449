"""read: rate and CPU time of training without computation, compared with plain preadv."""

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
"""The mean sample of unet3d, and a size for quick runs."""
CROP_BYTES = 2_097_152
READERS = 2
ROUNDS = 6
FROM_DRIVE_ROUNDS = 3
TRANSFER, WHOLE = format_named("npz").transfer_bytes, 1 << 30
"""Bytes of a read call of dlemu by default, and more than any file has."""
FEW_EPOCHS, MANY_EPOCHS = 2, 22
"""Epochs of the two runs whose difference does not include start-up."""
FROM_DRIVE_EPOCHS = 3
"""Epochs of runs that read from a drive, and of the shorter one of two. New memory makes first epochs slow."""


def measure(bench: Bench) -> Iterator[Figure | Unmeasured]:
    """Compare one rank with two workers with two processes that only read: from the page cache, then from a drive."""
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
    for engine, index, plain_index, other, speed, cost in (
        ("fast", 0, 1, beside, ratio_at_least(0.85), ratio_at_most(1.3)),
        ("fast", 0, 3, equal, None, None),
        ("library", 2, 1, beside, None, None),
    ):
        yield from each(
            [(results[index], results[plain_index]) for results in rounds],
            other,
            (f"bytes/s, {engine} engine", "MB/s", "mb_per_second", speed),
            (f"CPU for each GB, {engine} engine", "s/GB", "cpu_seconds_per_gb", cost),
        )
    yield from _past_the_cache(bench, reading)
    yield from _evicted(bench, reading)


def _past_the_cache(bench: Bench, reading: _Reading) -> Iterator[Figure | Unmeasured]:
    """Compare reads past the page cache: with requests of equal size, and with requests for whole files."""
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
    for what, index in ((f"bytes/s, O_DIRECT of {TRANSFER >> 10} KiB", 0), ("bytes/s, O_DIRECT of whole files", 2)):
        pairs = [(results[index].mb_per_second, results[1].mb_per_second) for results in rounds]
        yield compare(what, "MB/s", pairs, equal, None)


def _evicted(bench: Bench, reading: _Reading) -> Iterator[Figure | Unmeasured]:
    """Compare reads of files that are evicted from the page cache before each epoch, with requests of equal size."""
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
    """A dataset that is read by dlemu and by plain processes."""

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
            "reader.prefetch_size=4",  # two per worker, as PyTorch's default: with one, it waits for the trainer
            "train.computation_time=0",
        )
        train = os.path.join(bench.folder, "read", "train")
        self.paths = [os.path.join(train, name) for name in sorted(os.listdir(train))]

    def by_dlemu(self, engine: str) -> Took:
        """Read by `dlemu train`."""
        return self._bench.by_difference(*self._settings, f"reader.engine={engine}", fewer=FEW_EPOCHS, more=MANY_EPOCHS)

    def evicted(self) -> Took:
        """Read by `dlemu train`, which drops the files from the page cache before each epoch."""
        settings = *self._settings, "reader.evict_page_cache=epochs"
        return self._bench.by_difference(*settings, fewer=FROM_DRIVE_EPOCHS, more=3 * FROM_DRIVE_EPOCHS)

    def directly(self, transfer: int) -> Took:
        """Read by `dlemu train` past the page cache; the CPU time is not measured."""
        direct = "reader.odirect=true", f"reader.transfer_size={transfer}", f"train.epochs={FROM_DRIVE_EPOCHS}"
        by_epoch = self._bench.train(*self._settings, *direct).metrics["app_mb_per_second"]["per_epoch"]
        return Took(statistics.harmonic_mean(by_epoch[1:]), math.nan)

    def by_plain(self, transfer: int = 0, source: str = "cache") -> Took:
        """Read by plain processes, each its share of the files, with the niceness of dlemu's workers.

        Calls ask for `transfer` bytes, or whole files if 0; `source` is SOURCE of `plain_files`.
        """
        epochs = MANY_EPOCHS if source == "cache" else FROM_DRIVE_EPOCHS
        settings = "plain_files", "read", epochs, 1, transfer, source
        return self._bench.plain_together([(*settings, *self.paths[n::READERS]) for n in range(READERS)])[0]
