"""By default files are read by the calls that the format's usual library makes: as many, of as many bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import Dataset, inspect
from datagen.spec import DatasetSpec, EngineName
from tests.datagen.conftest import make

SAMPLES_PER_FILE = {"indexed_binary": 40, "mmap_indexed_binary": 40, "parquet": 40, "webdataset": 40, "hdf5": 1}
SIZES = (5_000, 100_000)


def dataset(folder: Path, name: str, sample_bytes: int, samples_per_file: int, **changes: Any) -> Dataset:
    side = int((sample_bytes * 0.9) ** 0.5) if name in ("png", "tiff") else 0
    spec = DatasetSpec(
        data_folder=str(folder / f"{name}-{sample_bytes}"),
        format=name,
        record_length_bytes=sample_bytes,
        record_dims=(side, side) if side else (),
        num_files_train=2,
        num_samples_per_file=samples_per_file,
        **changes,
    )
    return inspect(make(spec))


def by_dlemu(found: Dataset, batch: int, engine: EngineName = "matched") -> None:
    fetch = FetchSpec(found, found.train, engine=engine)
    fetcher, out = Fetcher(fetch), AlignedBuffer().view(fetch.slot_bytes(batch))
    for first in range(0, found.train.num_samples, batch):
        fetcher.fetch(range(first, first + batch), out)
    fetcher.close()


def reads(action: Callable[[], object]) -> tuple[int, int]:
    """Return calls and bytes read by this process, all its threads together: the least, as others of them add to it."""
    return min(_reads_once(action) for _ in range(3))


def _reads_once(action: Callable[[], object]) -> tuple[int, int]:
    """Count without the calls of looking at the account."""
    before, between = _account(), _account()
    action()
    after = _account()
    own = [late - early for late, early in zip(between, before, strict=True)]
    return after[0] - between[0] - own[0], after[1] - between[1] - own[1]


def _account() -> tuple[int, int]:
    values = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(values["syscr"]), int(values["rchar"])


def by_script(scripts: Any, found: Dataset) -> None:
    layout = found.train
    places = (layout.locate(sample) for sample in range(layout.num_samples))
    scripts.read(found.spec.format, [(layout.path(file), index) for file, index in places])


CASES = [
    (name, size, SAMPLES_PER_FILE.get(name, 1))
    for name in ("npz", "npy", "hdf5", "jpeg", "png", "tiff", "csv", *SAMPLES_PER_FILE)
    for size in SIZES
] + [("npz", 5_000, 40), ("npy", 5_000, 40), ("hdf5", 5_000, 40), ("hdf5", 100_000, 40)]


@pytest.mark.parametrize(("name", "sample_bytes", "samples_per_file"), sorted(set(CASES)))
def test_calls_and_bytes_are_those_of_the_library(
    module: Callable[[str], Any], tmp_path: Path, name: str, sample_bytes: int, samples_per_file: int
) -> None:
    scripts = module("library_scripts")
    found = dataset(tmp_path, name, sample_bytes, samples_per_file)
    by_script(scripts, found)  # what is imported is read, too
    by_dlemu(found, samples_per_file)
    theirs = reads(lambda: by_script(scripts, found))
    ours = reads(lambda: by_dlemu(found, samples_per_file))
    assert ours == theirs


WITHIN = 0.10
MOST_ROUNDS = 15


def alike(rounds: list[tuple[tuple[int, float], tuple[int, float]]]) -> bool:
    """Whether counts and sizes of both readers, each from its least to its most, lie within 10 % of each other."""
    (their_counts, their_sizes), (our_counts, our_sizes) = (
        zip(*side, strict=True) for side in zip(*rounds, strict=True)
    )
    return _overlap(their_counts, our_counts) and _overlap(their_sizes, our_sizes)


def _overlap(theirs: tuple[float, ...], ours: tuple[float, ...]) -> bool:
    return min(ours) <= max(theirs) * (1 + WITHIN) and max(ours) >= min(theirs) * (1 - WITHIN)


@pytest.mark.slow
@pytest.mark.root
def test_of_mapped_files_the_device_gets_the_requests_of_the_library(drives: Any) -> None:
    """A map is read by no calls that could be counted."""
    apart = []
    with drives.known_drive(drives.Speed(), size_bytes=1 << 30) as drive:
        for sample_bytes in (5_000, 100_000, 600_000):
            found = dataset(Path(drive.folder), "mmap_indexed_binary", sample_bytes, 40)
            by_library, by_us = partial(by_script_apart, found), partial(by_dlemu, found, 40)
            rounds: list[tuple[tuple[int, float], tuple[int, float]]] = []
            # Of a large file read in order the kernel's read-ahead races with its reader: both vary by a half.
            while len(rounds) < MOST_ROUNDS and not (rounds and alike(rounds)):
                rounds.append((requests(drive, by_library), requests(drive, by_us)))
            shutil.rmtree(found.spec.data_folder)
            if not alike(rounds):
                apart.append((sample_bytes, rounds))
    assert not apart


def requests(drive: Any, action: Callable[[], object]) -> tuple[int, float]:
    """Return how many reads the device served with nothing in the page cache, and their mean size in KiB.

    Where another test begins a mount namespace of its own meanwhile, the mount lives on in it, with its page cache.
    """
    stat = Path(f"/sys/block/{drive.device}/stat")
    count = 0
    while not count:
        drive.forget_cache()
        before = stat.read_text().split()
        action()
        after = stat.read_text().split()
        count, sectors = (int(after[field]) - int(before[field]) for field in (0, 2))
    return count, sectors / 2 / count


def by_script_apart(found: Dataset) -> None:
    """Read by the script in a process of its own, which ends with its maps (and TensorFlow's threads)."""
    layout = found.train
    places = (layout.locate(sample) for sample in range(layout.num_samples))
    samples = [f"{layout.path(file)}:{index}" for file, index in places]
    argv = [sys.executable, "-m", "validation.library_scripts", found.spec.format, "1", "1", *samples]
    subprocess.run(argv, check=True, capture_output=True)
