"""`dlemu try` on drives of known speed: what it reads of large and of small files, and the most the drive gives."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from benchmarks.processes import run

from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed

RATES = (100, 300)
"""MB/s; a faster drive's small files are limited by the cores that decode them, on two."""
WITHIN_PERCENT = 5.0


def measure(bed: Bed) -> Iterator[Check]:
    """Yield the rates of the two workloads, and of the probe."""
    for mb_per_second in RATES:
        bed.drive.set_speed(Speed(read_bytes_per_second=mb_per_second * 1_000_000))
        said = run(bed.drive.command([sys.executable, "-m", "dlemu", "try", bed.drive.folder])).output
        for what, form in (
            ("unet3d", "unet3d .*: reads"),
            ("retinanet", "retinanet .*: reads"),
            ("at most", "at most"),
        ):
            found = re.search(rf"{form} +([\d.]+) MB/s", said)
            rate = float(found[1]) if found else None
            yield Check(
                f"try, {mb_per_second} MB/s", what, mb_per_second, rate, "MB/s", within=WITHIN_PERCENT, percent=True
            )
