"""datagen: how fast datasets are made, checksums included, beside a program that writes from a ready buffer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial

from benchmarks.bench import MB, Bench
from benchmarks.figure import Figure, compare, ratio_at_least

FILES, FILE_BYTES = 8, 146_600_628
QUICK_FILE_BYTES = 16_000_000
ROUNDS = 8
"""Many and even: how fast the page cache takes new pages differs much from moment to moment."""
FEW_FILES = 2
"""Files made beside the slow way: a few seconds of it."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Files of unet3d's size, with as many threads as cores; then one thread beside the slow way."""
    making = _Making(bench)
    threads = len(os.sched_getaffinity(0))
    making.by_plain(threads, fsync=False)  # the first to fill this much memory in a virtual machine pays for all
    for words, fsync, wanted in (("with fsync", True, 0.8), ("without fsync", False, 0.4)):
        pairs = bench.interleaved(
            ROUNDS, partial(making.by_dlemu, threads, fsync=fsync), partial(making.by_plain, threads, fsync=fsync)
        )
        what = f"{words}, {threads} threads"
        yield compare(what, "MB/s", pairs, "writing a ready buffer", ratio_at_least(wanted))
    pairs = bench.interleaved(ROUNDS, partial(making.by_dlemu, 1, fsync=False, files=FEW_FILES), making.by_random)
    yield compare("without fsync, 1 thread", "MB/s", pairs, "random floats and np.savez", ratio_at_least(8))


class _Making:
    """Three ways to make the files; each finds an empty folder and leaves none."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._file_bytes = QUICK_FILE_BYTES if bench.quick else FILE_BYTES
        self._folder = os.path.join(bench.folder, "made")

    def by_dlemu(self, threads: int, *, fsync: bool, files: int = FILES) -> float:
        """Return MB/s of datagen."""
        dataset = f"num_files_train={files}", f"record_length_bytes={self._file_bytes}", "format=npz"
        return self._timed(("make_files",), threads, int(fsync), "default", *dataset)

    def by_plain(self, threads: int, *, fsync: bool) -> float:
        """Return MB/s of the program that only writes."""
        return self._timed(("plain_files", "write"), threads, int(fsync), *[self._file_bytes] * FILES)

    def by_random(self) -> float:
        """Return MB/s of drawing floats, in one process."""
        return self._timed(("plain_files", "random"), *[self._file_bytes] * FEW_FILES)

    def _timed(self, how: tuple[str, ...], *words: int | str) -> float:
        os.mkdir(self._folder)
        try:
            took = self._bench.plain(*how, self._folder, *words)
        finally:
            shutil.rmtree(self._folder)
        return float(took["bytes"] / took["wall_seconds"] / MB)
