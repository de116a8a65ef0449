"""dlemu's generation without its command: `make_files FOLDER FILES BYTES THREADS FSYNC [FORMAT SAMPLES]`.

The dataset's files are npz files of one sample each, or of another format with as many samples as asked for.

The start of `dlemu datagen` would be timed with a short run; what is timed here is prepare, generate and finish. Prints
one JSON object: bytes and wall_seconds.
"""

from __future__ import annotations

import json
import sys
import time

from datagen.generate import finish, generate, prepare
from datagen.spec import DatasetSpec


def make_files(
    folder: str, files: int, size_bytes: int, threads: int, fsync: bool, file_format: str = "npz", samples: int = 1
) -> dict[str, float]:
    """Make the dataset in one rank."""
    spec = DatasetSpec(
        data_folder=folder,
        format=file_format,
        num_files_train=files,
        num_samples_per_file=samples,
        record_length_bytes=size_bytes,
    )
    started = time.monotonic()
    prepare(spec)
    generate(spec, threads=threads, fsync=fsync)
    made = finish(spec)
    return {"bytes": made.bytes, "wall_seconds": time.monotonic() - started}


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    files, size_bytes, threads, fsync = map(int, words[:4])
    file_format, samples = words[4:] or ("npz", "1")
    print(json.dumps(make_files(folder, files, size_bytes, threads, fsync == 1, file_format, int(samples))))
