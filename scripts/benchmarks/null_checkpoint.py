"""`null_checkpoint WORKLOAD RANKS` plans a checkpoint of all ranks and writes the largest rank's to null storage.

Prints one JSON object: plan_seconds, files, bytes (of all ranks), rank_bytes, gb_per_second, memory_mb (private).
"""

from __future__ import annotations

import json
import re
import sys
import time

from datagen.storage.storage_base import NULL_STORAGE, open_storage
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.file_content import files_of
from dlemu.checkpoints.movers import make_buffers
from dlemu.checkpoints.write_files import CheckpointWriter
from dlemu.config import load


def main(workload_name: str, ranks: int) -> dict[str, float]:
    """Plan and write; return times, sizes and memory."""
    workload = load([f"workload={workload_name}"])
    settings = workload.checkpoint
    start = time.monotonic()
    plan = plan_checkpoint(workload.model, settings, ranks)
    layouts = [plan.files(rank) for rank in plan.ranks]
    sizes = [sum(layout.size_bytes for layout in rank_layouts) for rank_layouts in layouts]
    plan_seconds = time.monotonic() - start
    largest = max(range(ranks), key=lambda rank: sizes[rank])
    files = files_of("/null", layouts[largest], settings, 1, checkpoint=1, rank=largest)
    buffers = make_buffers(settings.writers, settings.transfer_size, max(file.size_bytes for file in files))
    writer = CheckpointWriter(open_storage(NULL_STORAGE), files, buffers, settings)
    start = time.monotonic()
    writer.write(lambda number, moved: None)
    seconds = time.monotonic() - start
    return {
        "plan_seconds": plan_seconds,
        "files": sum(map(len, layouts)),
        "bytes": sum(sizes),
        "rank_bytes": sizes[largest],
        "gb_per_second": sizes[largest] / 1e9 / seconds,
        "memory_mb": _private_mb(),
    }


def _private_mb() -> float:
    with open("/proc/self/smaps_rollup") as lines:
        return sum(map(int, re.findall(r"Private_\w+:\s+(\d+) kB", lines.read()))) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
