"""recorder: what the hook of `dlemu record` takes of a batch, beside the same loader while nothing is recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figure import Figure, compare

BATCHES, LOOKS, QUICK_LOOKS = 200, 40, 2


def measure(bench: Bench) -> Iterator[Figure]:
    """CPU of the thread that trains; without workers it reads the batches, too."""
    pairs = []
    for number in range(bench.rounds(3)):
        folder = os.path.join(bench.folder, f"recorder-{number}")
        looks = str(QUICK_LOOKS if bench.quick else LOOKS)
        recorded_us, alone_us = bench.python("-m", "benchmarks.recorder", folder, looks).output.split()[-2:]
        pairs.append((float(recorded_us) - float(alone_us), float(alone_us)))
    yield compare("CPU of a batch that is recorded", "us", pairs, "the batch itself", None)


def main(folder: str, looks: int) -> None:
    """Print the CPU of a batch in us, recorded and not: the least of several looks, so neighbours do not count."""
    os.environ["DLEMU_RECORD"] = folder
    import time

    from torch.utils.data import DataLoader

    import dlemu.contrib.record.recorder as hook

    loader: DataLoader[int] = DataLoader(list(range(4 * BATCHES)), batch_size=4)  # type: ignore[arg-type]

    def batch_us() -> float:
        began = time.thread_time()
        for _ in loader:
            pass
        return 1e6 * (time.thread_time() - began) / BATCHES

    batch_us()
    recorded = min(batch_us() for _ in range(looks))
    hook._process.ended = True  # as at the end of its window
    print(recorded, min(batch_us() for _ in range(looks)))


if __name__ == "__main__":
    import sys

    main(sys.argv[1], int(sys.argv[2]))
