"""The engine `threads` of `dlemu probe` compared with fio, in turn, on drives of known speed."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.processes import run

from dlemu.jobs.probe.result import PROBE
from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed

CASES = (
    (Speed(read_bytes_per_second=100_000_000), "128k", 32),
    (Speed(read_bytes_per_second=250_000_000), "1m", 8),
    (Speed(reads_per_second=2000), "4k", 1),
    (Speed(reads_per_second=5000), "4k", 64),
    (Speed(reads_per_second=2000), "16k", 32),
)
ROUNDS, SECONDS = 3, 3.0
FILE_BYTES = 512 << 20
WITHIN_PERCENT = 3.0


def measure(bed: Bed) -> Iterator[Check]:
    """Compare fio and dlemu in each case."""
    path = os.path.join(bed.drive.folder, "probe")
    with open(path, "wb") as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    try:
        for speed, size, depth in CASES:
            bed.drive.set_speed(speed)
            bandwidth = speed.read_bytes_per_second
            limit = f"{bandwidth / 1e6:g} MB/s" if bandwidth else f"{speed.reads_per_second} reads/s"
            yield from _compare(bed, path, size, depth, f"{limit}: {size}, {depth} in flight")
    finally:
        os.unlink(path)


def _compare(bed: Bed, path: str, size: str, depth: int, case: str) -> Iterator[Check]:
    rounds = [(_cell(bed, path, size, depth, "fio"), _cell(bed, path, size, depth, "threads")) for _ in range(ROUNDS)]
    for key, unit in (("mb_per_second", "MB/s"), ("iops", "/s")):
        fio, own = (statistics.median(pair[side][key] for pair in rounds) for side in (0, 1))
        yield _check(case, f"{key} / fio's", fio, own, unit)
    fio, own = (statistics.median(pair[side]["latency_ms"]["mean"] for pair in rounds) for side in (0, 1))
    yield _check(case, "mean latency / fio's", fio, own, "ms")


def _check(case: str, what: str, theory: float, own: float, unit: str) -> Check:
    return Check(case, what, theory, own, unit, within=WITHIN_PERCENT, percent=True)


def _cell(bed: Bed, path: str, size: str, depth: int, engine: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as results:
        options = ["--sizes", size, "--depths", str(depth), "--seconds", str(SECONDS), "--engine", engine]
        argv = [sys.executable, "-m", "dlemu", "probe", path, *options, "--output", results]
        run(bed.drive.command(argv))
        with open(os.path.join(results, PROBE)) as text:
            cell: dict[str, Any] = json.load(text)["cells"][0]
        return cell
