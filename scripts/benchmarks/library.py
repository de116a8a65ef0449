"""library: the CPU time of a byte by the library that most scripts read a format with, beside dlemu's own reader.

The ratios are those of `LibraryReads.cpu_ratio`, by which a result says what the workers would need with the library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from benchmarks.bench import Bench
from benchmarks.figure import Figure, compare
from datagen.formats.format_base import library_reads

DATASETS = {"npz": (4, 146_600_628), "npy": (48, 4_194_304), "hdf5": (48, 4_194_304)}
"""Format -> files and bytes of a record: unet3d's, and hdf5's of the workloads' benchmarks."""
QUICK_FILES, QUICK_BYTES = 4, 1_000_000
ROUNDS, EPOCHS = 5, 4


def measure(bench: Bench) -> Iterator[Figure]:
    """Out of the page cache, one process, samples of one file each, not decoded."""
    for file_format, (files, record_bytes) in DATASETS.items():
        if bench.quick:
            files, record_bytes = QUICK_FILES, QUICK_BYTES
        words = f"format={file_format}", f"num_files_train={files}", f"record_length_bytes={record_bytes}"
        name = f"library-{file_format}"
        bench.make_dataset(name, *(f"dataset.{word}" for word in words))
        settings = os.path.join(bench.folder, name), file_format, str(files), str(record_bytes)
        costs = [partial(_cpu_seconds_per_gb, bench, *settings, engine) for engine in ("library", "fast")]
        yield compare(
            f"CPU for each GB, {library_reads(file_format).call} of {file_format}",
            "s/GB",
            bench.interleaved(ROUNDS, *costs),
            "the fast engine",
            None,
        )


def _cpu_seconds_per_gb(bench: Bench, *words: str) -> float:
    took = bench.plain("fetch_cpu", *words, EPOCHS)
    return float(took["cpu_seconds"] / (took["bytes"] / 1e9))
