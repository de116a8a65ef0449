"""dlemu's generation without its command: `make_files FOLDER FILES BYTES THREADS FSYNC` makes a dataset of npz files.

The start of `dlemu datagen` would be timed with a short run; what is timed here is prepare, generate and finish. Prints
one JSON object: bytes and wall_seconds.
"""

from __future__ import annotations

import json
import sys
import time

from datagen.generate import finish, generate, prepare
from datagen.spec import DatasetSpec


def make_files(folder: str, files: int, size_bytes: int, threads: int, fsync: bool) -> dict[str, float]:
    """Make the dataset in one rank."""
    spec = DatasetSpec(data_folder=folder, format="npz", num_files_train=files, record_length_bytes=size_bytes)
    started = time.monotonic()
    prepare(spec)
    generate(spec, threads=threads, fsync=fsync)
    made = finish(spec)
    return {"bytes": made.bytes, "wall_seconds": time.monotonic() - started}


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    files, size_bytes, threads, fsync = map(int, numbers)
    print(json.dumps(make_files(folder, files, size_bytes, threads, fsync == 1)))
