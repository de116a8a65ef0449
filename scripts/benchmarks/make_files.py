"""Makes a dataset without the command: `make_files FOLDER THREADS FSYNC WORKLOAD KEY=VALUE ...`.

The keys are settings of section `dataset`; others have the workload's values. The time includes prepare, generate and
finish, but not the start of `dlemu datagen`, which is long for a short run. Prints a JSON object: bytes, wall_seconds.
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
    """Make the dataset in one rank; return its bytes and the time."""
    start = time.monotonic()
    prepare(spec)
    generate(spec, threads=threads, fsync=fsync)
    dataset = finish(spec)
    return {"bytes": dataset.bytes, "wall_seconds": time.monotonic() - start}


if __name__ == "__main__":
    folder, threads, fsync, workload, *settings = sys.argv[1:]
    dataset = load([f"workload={workload}", *(f"dataset.{setting}" for setting in settings)]).dataset
    spec = replace(dataset, data_folder=folder, num_files_eval=0)
    print(json.dumps(make_files(spec, int(threads), fsync == "1")))
