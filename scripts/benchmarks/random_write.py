"""Generation as it is commonly done: `random_write FOLDER SIZE...` draws each sample and saves it by np.savez.

Floats are drawn, scaled and cast to bytes, which is how DLIO makes its samples. Prints one JSON object: bytes and
wall_seconds.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence

import numpy as np


def write_files(folder: str, sizes: Sequence[int]) -> dict[str, float]:
    """Write one sample of about each size."""
    started = time.monotonic()
    total = 0
    for number, size in enumerate(sizes):
        path = os.path.join(folder, f"random_{number}.npz")
        side = math.isqrt(size)
        drawn = np.random.default_rng(number).random((side, side, 1), dtype=np.float32)
        np.savez(path, x=(drawn * 255).astype(np.uint8), y=[0])
        total += os.path.getsize(path)
    return {"bytes": total, "wall_seconds": time.monotonic() - started}


if __name__ == "__main__":
    print(json.dumps(write_files(sys.argv[1], [int(size) for size in sys.argv[2:]])))
