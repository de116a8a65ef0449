"""datagen: the rate of making datasets, with checksums, compared with a program that writes a ready buffer."""

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
"""Many, because the page cache's rate of new pages varies much; even, because every other round runs backwards."""
FEW_FILES = 2
"""Number of files for the comparison with random floats: enough for a few seconds."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Make files of unet3d's size with one thread per core; then with one thread, compared with random floats."""
    making = _Making(bench)
    threads = len(os.sched_getaffinity(0))
    making.by_plain(threads, fsync=False)  # in a virtual machine, the first program to fill so much memory is slow
    for name, fsync, bound in (("with fsync", True, 0.8), ("without fsync", False, 0.4)):
        pairs = bench.interleaved(
            ROUNDS, partial(making.by_dlemu, threads, fsync=fsync), partial(making.by_plain, threads, fsync=fsync)
        )
        what = f"{name}, {threads} threads"
        yield compare(what, "MB/s", pairs, "writing a ready buffer", ratio_at_least(bound))
    pairs = bench.interleaved(ROUNDS, partial(making.by_dlemu, 1, fsync=False, files=FEW_FILES), making.by_random)
    yield compare("without fsync, 1 thread", "MB/s", pairs, "random floats and np.savez", ratio_at_least(8))


class _Making:
    """Three programs that make the files; each starts with an empty folder, which is removed afterwards."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._file_bytes = QUICK_FILE_BYTES if bench.quick else FILE_BYTES
        self._folder = os.path.join(bench.folder, "made")

    def by_dlemu(self, threads: int, *, fsync: bool, files: int = FILES) -> float:
        """Return MB/s of datagen."""
        dataset = f"num_files_train={files}", f"record_length_bytes={self._file_bytes}", "format=npz"
        return self._timed(("make_files",), threads, int(fsync), "default", *dataset)

    def by_plain(self, threads: int, *, fsync: bool) -> float:
        """Return MB/s of a program that only writes."""
        return self._timed(("plain_files", "write"), threads, int(fsync), *[self._file_bytes] * FILES)

    def by_random(self) -> float:
        """Return MB/s of a program that draws random floats."""
        return self._timed(("plain_files", "random"), *[self._file_bytes] * FEW_FILES)

    def _timed(self, program: tuple[str, ...], *arguments: int | str) -> float:
        os.mkdir(self._folder)
        try:
            result = self._bench.plain(*program, self._folder, *arguments)
        finally:
            shutil.rmtree(self._folder)
        return float(result["bytes"] / result["wall_seconds"] / MB)
