"""dlemu's generation without its command: `make_files FOLDER THREADS FSYNC WORKLOAD KEY=VALUE ...`.

The keys are those of section `dataset`; what they leave out is the workload's. The start of `dlemu datagen` would be
timed with a short run; what is timed here is prepare, generate and finish. Prints one JSON object: bytes, wall_seconds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

from datagen.generate import finish, generate, prepare
from datagen.spec import DatasetSpec
from dlemu.config import load


def make_files(spec: DatasetSpec, threads: int, fsync: bool) -> dict[str, float]:
    """Make the dataset in one rank."""
    started = time.monotonic()
    prepare(spec)
    generate(spec, threads=threads, fsync=fsync)
    made = finish(spec)
    return {"bytes": made.bytes, "wall_seconds": time.monotonic() - started}


if __name__ == "__main__":
    folder, threads, fsync, workload, *words = sys.argv[1:]
    dataset = load([f"workload={workload}", *(f"dataset.{word}" for word in words)]).dataset
    spec = replace(dataset, data_folder=folder, num_files_eval=0)
    print(json.dumps(make_files(spec, int(threads), fsync == "1")))
