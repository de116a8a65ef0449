"""Sets that a drive does not serve: sparse files, half of the files in the page cache. No verdict may rest on them."""

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
"""At either end of each sparse file: what tells where its samples lie."""
DEMAND, GIVEN = 100.0, 61.0
"""MB/s asked for, and the drive's: it sustains 61 %."""
COMMON = (
    "train.epochs=1",
    "ranks=2",
    *section("reader", batch_size=1, read_threads=4, file_shuffle="seed"),
    f"train.computation_time={2 * MB / (DEMAND * MB)}",
    *section("metric", ceiling_seconds=0, scaling_seconds=0),
)


def measure(bed: Bed) -> Iterator[Check]:
    """Each set on a drive that is too slow for what is asked for."""
    yield from _sparse(bed)
    yield from _half_cached(bed)
    name = "read whole"
    ran = _run(bed, FULL, "reader.evict_page_cache=epochs")
    yield from ran.beside([*_judged(name, ran, "FAIL", 100.0), _au(name, ran, 100 * GIVEN / DEMAND)])


def _sparse(bed: Bed) -> Iterator[Check]:
    """Past the page cache, too, nothing is read of a hole: the drive gives the headers alone."""
    bed.prepare(SPARSE)
    files = _files(bed, SPARSE)
    for path in files:
        size = os.path.getsize(path)
        run(["fallocate", "--punch-hole", "--offset", str(KEPT_BYTES), "--length", str(size - 2 * KEPT_BYTES), path])
    given = 100 * sum(os.stat(path).st_blocks * 512 for path in files) / sum(map(os.path.getsize, files))
    for how in ("reader.odirect=true", "reader.evict_page_cache=epochs"):
        name = f"sparse files, {how}"
        ran = _run(bed, SPARSE, how)
        yield from ran.beside(_judged(name, ran, "NO VERDICT", given))


def _half_cached(bed: Bed) -> Iterator[Check]:
    """The first half of the files was read before; the drive serves the rest, and is fast enough for that."""
    for words, verdict in (((), "NO VERDICT"), (("metric.cached=true",), "PASS")):
        bed.prepare(FULL)
        bed.drive.set_speed(Speed())
        bed.drive.forget_cache()
        files = _files(bed, FULL)
        for path in files[: len(files) // 2]:
            with open(path, "rb") as file:
                while file.read(1 << 20):
                    pass
        name = " ".join(("half of the files in the page cache", *words))
        ran = _run(bed, FULL, *words, cold=False)
        # About half: the drive's own count from outside is exact, whatever the kernel dropped or read ahead.
        given = 100 * ran.watched_mb * MB / float(ran.metrics["app_bytes"])
        yield Check(name, "the drive's own count", 50.0, given, "%", within=10)
        yield from ran.beside([*_judged(name, ran, verdict, given), _au(name, ran, 100.0)])


def _run(bed: Bed, dataset: Dataset, *settings: str, cold: bool = True) -> Ran:
    return bed.train(dataset, *COMMON, *settings, speed=Speed(read_bytes_per_second=int(GIVEN * MB)), cold=cold)


def _judged(name: str, ran: Ran, verdict: str, served: float) -> Iterator[Check]:
    """The word of the verdict, the exit status that says the same, and how much the storage served."""
    yield Check(name, "verdict", verdict, str(ran.summary["verdict"]).split(":")[0])
    status = float({"PASS": 0, "FAIL": 1, "NO VERDICT": 4}[verdict])
    yield Check(name, "exit status", status, float(ran.exit_status))
    told = (ran.summary["page_cache"] or {}).get("served_percent")
    yield Check(name, "served by the storage", served, told, "%", within=2)


def _au(name: str, ran: Ran, theory: float) -> Check:
    """Half of a set on 61 % of the speed that the whole needs keeps up with the accelerators."""
    sustained = float(ran.metrics["au_sustained_percent"]["mean"])
    return Check(name, "sustained AU", theory, sustained, "%", within=3)


def _files(bed: Bed, dataset: Dataset) -> list[str]:
    return sorted(glob.glob(os.path.join(bed.drive.folder, dataset.name, "train", "*")))
