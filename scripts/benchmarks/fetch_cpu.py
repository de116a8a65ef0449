"""The reader without a loader: `fetch_cpu FOLDER FORMAT FILES RECORD_BYTES ENGINE EPOCHS` reads each file EPOCHS times.

One pass before them does not count. Prints one JSON object: bytes and cpu_seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Literal, cast

from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.spec import DatasetSpec

SLOTS = 4
"""Batches of one sample whose memory is used in turn, as a loader's is."""


def read(spec: DatasetSpec, engine: Literal["fast", "library"], epochs: int) -> dict[str, float]:
    """Read all samples one by one, `epochs` times over."""
    found = inspect(spec)
    fetch = FetchSpec.for_dataset(found, found.train, engine=engine)
    fetcher, buffers = Fetcher(fetch), [AlignedBuffer(fetch.slot_bytes(1)) for _ in range(SLOTS)]
    slots = [buffer.view(fetch.slot_bytes(1)) for buffer in buffers]
    total, started = 0, time.process_time()
    for epoch in range(epochs + 1):
        if epoch == 1:
            total, started = 0, time.process_time()
        for sample in range(spec.num_files_train):
            total += fetcher.fetch([sample], slots[sample % SLOTS]).app_bytes
    return {"bytes": total, "cpu_seconds": time.process_time() - started}


if __name__ == "__main__":
    folder, file_format, files, record_bytes, engine, epochs = sys.argv[1:]
    spec = DatasetSpec(
        data_folder=folder, format=file_format, num_files_train=int(files), record_length_bytes=int(record_bytes)
    )
    print(json.dumps(read(spec, cast("Literal['fast', 'library']", engine), int(epochs))))
