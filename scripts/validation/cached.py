"""Datasets that the drive does not serve in full: sparse, or half in the page cache. They must give no verdict."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from benchmarks.processes import run
from measuring.runs import section

from validation.bandwidth import MB
from validation.bed import Bed, Dataset, Ran
from validation.check import Check
from validation.drive import Speed

FULL = Dataset(name="npz-1mb-cached", format="npz", sample_bytes=MB, files=400)
SPARSE = Dataset(name="npz-1mb-sparse", format="npz", sample_bytes=MB, files=400)
KEPT_BYTES = 8192
"""Bytes at either end of a sparse file that are not punched out: its headers."""
DEMAND, SUPPLY = 100.0, 61.0
"""MB/s of the accelerators, and of the drive, which sustains an AU of 61 %."""
COMMON = (
    "train.epochs=1",
    "ranks=2",
    *section("reader", batch_size=1, read_threads=4, file_shuffle="seed"),
    f"train.computation_time={2 * MB / (DEMAND * MB)}",
    *section("metric", ceiling_seconds=0, scaling_seconds=0),
)


def measure(bed: Bed) -> Iterator[Check]:
    """Check each dataset on a drive that is too slow for the demand."""
    yield from _sparse(bed)
    yield from _half_cached(bed)
    name = "read whole"
    ran = _run(bed, FULL, "reader.evict_page_cache=epochs")
    yield from ran.beside([*_judged(name, ran, "FAIL", 100.0), _au(name, ran, 100 * SUPPLY / DEMAND)])


def _sparse(bed: Bed) -> Iterator[Check]:
    """Even past the page cache, holes are not read: the drive serves only the headers."""
    bed.prepare(SPARSE)
    files = _files(bed, SPARSE)
    for path in files:
        size = os.path.getsize(path)
        run(["fallocate", "--punch-hole", "--offset", str(KEPT_BYTES), "--length", str(size - 2 * KEPT_BYTES), path])
    stored_percent = 100 * sum(os.stat(path).st_blocks * 512 for path in files) / sum(map(os.path.getsize, files))
    for setting in ("reader.odirect=true", "reader.evict_page_cache=epochs"):
        name = f"sparse files, {setting}"
        ran = _run(bed, SPARSE, setting)
        yield from ran.beside(_judged(name, ran, "NO VERDICT", stored_percent))


def _half_cached(bed: Bed) -> Iterator[Check]:
    """The first half of the files is in the page cache. The drive serves the rest, and is fast enough for that."""
    for settings, verdict in (((), "NO VERDICT"), (("metric.cached=true",), "PASS")):
        bed.prepare(FULL)
        bed.drive.set_speed(Speed())
        bed.drive.forget_cache()
        files = _files(bed, FULL)
        for path in files[: len(files) // 2]:
            with open(path, "rb") as file:
                while file.read(1 << 20):
                    pass
        name = " ".join(("half of the files in the page cache", *settings))
        ran = _run(bed, FULL, *settings, cold=False)
        # The drive's own count is exact. It is only about half, because the kernel drops pages and reads ahead.
        served_percent = 100 * ran.watched_mb * MB / float(ran.metrics["app_bytes"])
        yield Check(name, "the drive's own count", 50.0, served_percent, "%", within=10)
        yield from ran.beside([*_judged(name, ran, verdict, served_percent), _au(name, ran, 100.0)])


def _run(bed: Bed, dataset: Dataset, *settings: str, cold: bool = True) -> Ran:
    return bed.train(dataset, *COMMON, *settings, speed=Speed(read_bytes_per_second=int(SUPPLY * MB)), cold=cold)


def _judged(name: str, ran: Ran, verdict: str, served_percent: float) -> Iterator[Check]:
    """Check the verdict, the exit status, and how much the storage served."""
    yield Check(name, "verdict", verdict, str(ran.summary["verdict"]).split(":")[0])
    status = float({"PASS": 0, "FAIL": 1, "NO VERDICT": 4}[verdict])
    yield Check(name, "exit status", status, float(ran.exit_status))
    reported_percent = (ran.summary["page_cache"] or {}).get("served_percent")
    yield Check(name, "served by the storage", served_percent, reported_percent, "%", within=2)


def _au(name: str, ran: Ran, theory: float) -> Check:
    """Check the sustained AU; it is 100 % if the drive, at 61 % of the demand, serves only half of the dataset."""
    sustained = float(ran.metrics["au_sustained_percent"]["mean"])
    return Check(name, "sustained AU", theory, sustained, "%", within=3)


def _files(bed: Bed, dataset: Dataset) -> list[str]:
    return sorted(glob.glob(os.path.join(bed.drive.folder, dataset.name, "train", "*")))
