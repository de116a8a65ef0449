"""`dlemu try` on drives of known speed: its rates for large and for small files, and the drive's maximum."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from benchmarks.processes import run

from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed

RATES = (100, 300)
"""MB/s of the drives. On two cores, decoding limits the rate of small files on faster ones."""
WITHIN_PERCENT = 5.0


def measure(bed: Bed) -> Iterator[Check]:
    """Check the rates of the two workloads, and of the probe."""
    for mb_per_second in RATES:
        bed.drive.set_speed(Speed(read_bytes_per_second=mb_per_second * 1_000_000))
        output = run(bed.drive.command([sys.executable, "-m", "dlemu", "try", bed.drive.folder])).output
        for what, label in (
            ("unet3d", "unet3d .*: reads"),
            ("retinanet", "retinanet .*: reads"),
            ("at most", "at most"),
        ):
            match = re.search(rf"{label} +([\d.]+) MB/s", output)
            rate = float(match[1]) if match else None
            yield Check(
                f"try, {mb_per_second} MB/s", what, mb_per_second, rate, "MB/s", within=WITHIN_PERCENT, percent=True
            )
