"""The bytes of small checkpoints of each format, and the calls by which they are read: `byte_oracle.json` has them.

`python -m tests.checkpoints.byte_oracle` writes that file anew and prints which entries changed.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from datagen.registry import names
from datagen.storage import memory
from dlemu.checkpoints.checkpoint_plan import FORMATS, plan_checkpoint
from dlemu.checkpoints.file_content import files_of
from dlemu.checkpoints.movers import make_buffers
from dlemu.checkpoints.read_files import CheckpointReader, read_pattern
from dlemu.checkpoints.write_files import CheckpointWriter
from dlemu.config.schema import Checkpoint
from tests.checkpoints.models import SHAPES
from tests.datagen.byte_oracle import Entry, Recorded, of_file, rewrite, shown

ORACLE = Path(__file__).with_suffix(".json")
RANKS, PIECE_BYTES = 4, 4096


def record(form: str, shape: str) -> Entry:
    """Write all ranks' files; return their bytes, and the calls by which the files of rank 0 are read.

    Which of several threads reads first is left to chance: their calls are in the order of offsets.
    """
    settings = Checkpoint(format=form, fsync=False, transfer_size=PIECE_BYTES)
    plan, held = plan_checkpoint(SHAPES[shape], settings, RANKS), memory.Storage()
    entry: Entry = {}
    for rank in reversed(plan.ranks):
        named = files_of("", plan.files(rank), settings, 5, checkpoint=1, rank=rank)
        files = [replace(file, path=file.layout.path) for file in named]
        buffers = make_buffers(1, PIECE_BYTES, max((file.size_bytes for file in files), default=0))
        CheckpointWriter(held, files, buffers, settings).write(lambda _number, _file: None)
    for path, data in sorted(held.files.items()):
        entry[path] = of_file(data)
    for manner in ("fast", "torch_load", "mlperf_v3"):
        pattern, calls = read_pattern(Checkpoint(read_as=manner, readers=1, transfer_size=PIECE_BYTES)), []
        with contextlib.closing(CheckpointReader(storage := Recorded(held), pattern, verify=True)) as reader:
            for file in files:
                reader.read([file], lambda _number, _file: None, content_known=True)
                opened, *reads = storage.calls
                calls += [opened, *(sorted(reads) if pattern.threads > 1 else reads)]
                storage.calls.clear()
        entry[manner] = shown(calls)
    return entry


def cases() -> list[tuple[str, str]]:
    return list(product(names(FORMATS), SHAPES))


def main() -> int:
    rewrite(ORACLE, {", ".join(case): record(*case) for case in cases()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
