"""recorder: the CPU time per batch of the hook of `dlemu record`, compared with the same loader without it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figure import Figure, compare

BATCHES, REPEATS, QUICK_REPEATS = 200, 40, 2


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure the CPU time of the training thread, which also reads the batches, as there are no workers."""
    pairs = []
    for number in range(bench.rounds(3)):
        folder = os.path.join(bench.folder, f"recorder-{number}")
        repeats = str(QUICK_REPEATS if bench.quick else REPEATS)
        recorded_us, plain_us = bench.python("-m", "benchmarks.recorder", folder, repeats).output.split()[-2:]
        pairs.append((float(recorded_us) - float(plain_us), float(plain_us)))
    yield compare("CPU of a batch that is recorded", "us", pairs, "the batch itself", None)


def main(folder: str, repeats: int) -> None:
    """Print the CPU time of a batch, us, recorded and not: the minimum of repeats, which other load affects least."""
    os.environ["DLEMU_RECORD"] = folder
    import time

    from torch.utils.data import DataLoader

    import dlemu.contrib.record.recorder as hook

    loader: DataLoader[int] = DataLoader(list(range(4 * BATCHES)), batch_size=4)  # type: ignore[arg-type]

    def batch_us() -> float:
        start = time.thread_time()
        for _ in loader:
            pass
        return 1e6 * (time.thread_time() - start) / BATCHES

    batch_us()
    recorded = min(batch_us() for _ in range(repeats))
    hook._process.ended = True  # stops recording
    print(recorded, min(batch_us() for _ in range(repeats)))


if __name__ == "__main__":
    import sys

    main(sys.argv[1], int(sys.argv[2]))
