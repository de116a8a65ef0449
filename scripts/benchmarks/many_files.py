"""many_files: a million files of 1 kB: the time from the command to the first step, and the memory per file.

The files are hard links to a few files, with the names and sizes of a dataset, so that they are made in seconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial

from measuring.runs import section

from benchmarks.bench import Bench
from benchmarks.figure import Figure, alone, compare, value_at_most
from benchmarks.live import seconds_to_first_step
from benchmarks.processes import tree_pss_bytes
from datagen.layout import layouts
from datagen.spec import DatasetSpec

RANKS = 2
MANY, QUICK_MANY, FEW = 1_000_000, 20_000, 1_000
RECORD_BYTES = 1024
MAX_LINKS = 60_000
"""Links to one file; ext4 allows 65000."""

Start = tuple[float, float]
"""Seconds to the first step, and bytes of memory of the whole run at that moment."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Compare runs on many files with runs on a thousand."""
    many = QUICK_MANY if bench.quick else MANY
    pairs = bench.interleaved(3, *(partial(_first_step, bench, _make(bench, files), files) for files in (many, FEW)))
    seconds = [(own[0], beside[0]) for own, beside in pairs]
    yield compare(
        f"{many:,} files, {RANKS} ranks to their first step", "s", seconds, f"{FEW:,} files", value_at_most(4)
    )
    bytes_per_file = [max(0.0, own[1] - beside[1]) / (many - FEW) / RANKS for own, beside in pairs]
    yield alone("memory (PSS) for each file and rank", "bytes", bytes_per_file, value_at_most(200))


def _make(bench: Bench, files: int) -> str:
    """Make one file, copy it once per MAX_LINKS files, and link the others to the copies; return the folder."""
    folder, source = (os.path.join(bench.folder, name) for name in (f"of-{files}", f"one-of-{files}"))
    settings = (*section("dataset", num_files_train=1, record_length_bytes=RECORD_BYTES, data_folder=source),)
    bench.dlemu("datagen", *settings)
    first = layouts(_spec(source, 1))[0].path(0)
    layout = layouts(_spec(folder, files))[0]
    os.makedirs(layout.folder)
    copy = first
    for file in range(files):
        path = layout.path(file)
        if file % MAX_LINKS == 0:
            shutil.copy(first, path)
            copy = path
        else:
            os.link(copy, path)
    os.sync()  # so that runs don't wait for these writes
    return folder


def _spec(folder: str, files: int) -> DatasetSpec:
    return DatasetSpec(data_folder=folder, format="npz", num_files_train=files, record_length_bytes=RECORD_BYTES)


def _first_step(bench: Bench, folder: str, files: int) -> Start:
    settings = (
        *section("dataset", data_folder=folder, num_files_train=files, record_length_bytes=RECORD_BYTES),
        f"ranks={RANKS}",
        *section("reader", read_threads=4, file_shuffle="seed"),
        "metric.ceiling_seconds=0",  # it would take two seconds
        "train.epochs=4",
        "train.total_training_steps=400",  # keeps the step log short, which is polled
    )
    with bench.training(*settings) as (child, results):
        return seconds_to_first_step(child, results, RANKS), float(tree_pss_bytes(child.tree()))
