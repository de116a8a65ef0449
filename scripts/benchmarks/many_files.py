"""many_files: a million files of 1 kB, from the command to the first step, and the memory that each costs a rank.

The files are hard links to a few, under the names and of the sizes of a dataset: making a million takes seconds so.
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
MOST_LINKS = 60_000
"""ext4 allows 65000 names of one file."""

Seen = tuple[float, float]
"""Seconds to the first step, and bytes of memory of the whole run then."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Runs over many files beside runs over a thousand."""
    many = QUICK_MANY if bench.quick else MANY
    pairs = bench.interleaved(3, *(partial(_first_step, bench, _made(bench, files), files) for files in (many, FEW)))
    seconds = [(own[0], beside[0]) for own, beside in pairs]
    yield compare(
        f"{many:,} files, {RANKS} ranks to their first step", "s", seconds, f"{FEW:,} files", value_at_most(4)
    )
    each = [max(0.0, own[1] - beside[1]) / (many - FEW) / RANKS for own, beside in pairs]
    yield alone("memory (PSS) for each file and rank", "bytes", each, value_at_most(200))


def _made(bench: Bench, files: int) -> str:
    """Make one file, copy it as often as its names need it, and link; return the folder."""
    folder, one = (os.path.join(bench.folder, name) for name in (f"of-{files}", f"one-of-{files}"))
    settings = (*section("dataset", num_files_train=1, record_length_bytes=RECORD_BYTES, data_folder=one),)
    bench.dlemu("datagen", *settings)
    first = layouts(_spec(one, 1))[0].path(0)
    layout = layouts(_spec(folder, files))[0]
    os.makedirs(layout.folder)
    copy = first
    for file in range(files):
        path = layout.path(file)
        if file % MOST_LINKS == 0:
            shutil.copy(first, path)
            copy = path
        else:
            os.link(copy, path)
    os.sync()  # what made the files is not what runs over them wait for
    return folder


def _spec(folder: str, files: int) -> DatasetSpec:
    return DatasetSpec(data_folder=folder, format="npz", num_files_train=files, record_length_bytes=RECORD_BYTES)


def _first_step(bench: Bench, folder: str, files: int) -> Seen:
    settings = (
        *section("dataset", data_folder=folder, num_files_train=files, record_length_bytes=RECORD_BYTES),
        f"ranks={RANKS}",
        *section("reader", read_threads=4, file_shuffle="seed"),
        "metric.ceiling_seconds=0",  # two seconds, whatever the files
        "train.epochs=4",
        "train.total_training_steps=400",  # a step log for every step of a million files would be read at each look
    )
    with bench.training(*settings) as (child, results):
        return seconds_to_first_step(child, results, RANKS), float(tree_pss_bytes(child.tree()))
