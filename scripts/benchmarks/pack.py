"""Packing images by `dlemu pack` compared with a script with a pool of processes (docs/benchmarks.md, "pack")."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, compare, ratio_at_least

IMAGES = 96
SIDE = 1384
"""Width and height in pixels: a quarter of Colfax's images, 5.7 MB each."""
QUICK_IMAGES = 16
SMALL = 256
ROUNDS = 6


def measure(bench: Bench) -> Iterator[Figure]:
    """Rescale TIFF images from the page cache to 256 x 256 pixels, by one process, and by one per core."""
    images = QUICK_IMAGES if bench.quick else IMAGES
    shape = ("dataset.format=tiff", f"dataset.record_dims=[{SIDE},{SIDE},3]")
    size = f"dataset.record_length_bytes={3 * SIDE * SIDE + 4096}"
    data_folder = bench.make_dataset("images", "workload=default", *shape, size, f"dataset.num_files_train={images}")
    packing = _Packing(bench, os.path.join(data_folder.partition("=")[2], "train"))
    for processes in sorted({1, len(os.sched_getaffinity(0))}):
        pairs = bench.interleaved(ROUNDS, partial(packing.by_dlemu, processes), partial(packing.by_plain, processes))
        what = "1 process" if processes == 1 else f"{processes} processes"
        yield compare(what, "MB/s", pairs, "a pool that does the same", ratio_at_least(0.95))


class _Packing:
    """Two programs that pack the same images; each starts without a target, which is removed afterwards."""

    def __init__(self, bench: Bench, source: str) -> None:
        self._bench, self._source = bench, source
        self._target = os.path.join(bench.folder, "packed")
        self._results = os.path.join(bench.folder, "packing")

    def by_dlemu(self, processes: int) -> float:
        """Return MB/s that dlemu read."""
        settings = [f"pack.source={self._source}", f"pack.target={self._target}", f"ranks={processes}"]
        settings += [f"pack.resize={SMALL}x{SMALL}", "pack.evict=false", f"output.folder={self._results}"]
        try:
            self._bench.dlemu("pack", *settings, "output.report=false")
            with open(os.path.join(self._results, "summary.json")) as lines:
                return float(json.load(lines)["read_mb_per_second"])
        finally:
            shutil.rmtree(self._target, ignore_errors=True)
            shutil.rmtree(self._results, ignore_errors=True)

    def by_plain(self, processes: int) -> float:
        """Return MB/s that the pool read."""
        os.mkdir(self._target)
        try:
            result = self._bench.plain("plain_pack", self._source, self._target, processes, SMALL, SMALL)
        finally:
            shutil.rmtree(self._target)
        return float(result["bytes"] / result["wall_seconds"] / MB)
