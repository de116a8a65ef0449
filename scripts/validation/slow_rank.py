"""A loader (docs/extending.md) whose rank 1 reads from a slow drive: `reader.data_loader=validation.slow_rank`."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import replace

from datagen.storage import posix
from datagen.storage.storage_base import StorageSpec
from dlemu.loaders import pytorch
from dlemu.loaders.loader_base import LoaderSpec

SLOW_RANK, DELAY_SECONDS = 1, 0.04


class SlowReader(posix.FileReader):
    """An open file of a drive that serves one request at a time, so that more readers gain nothing."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        drive = os.open(os.path.dirname(os.readlink(f"/proc/self/fd/{self.descriptor}")), os.O_RDONLY)
        fcntl.flock(drive, fcntl.LOCK_EX)
        time.sleep(DELAY_SECONDS)
        os.close(drive)
        return super().read_into(buffer, offset)


class Storage(posix.Storage):
    """Files that are slow to read."""

    def open(self, path: str) -> SlowReader:
        return SlowReader(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), self.alignment)


class Loader(pytorch.Loader):
    """The pytorch loader, with slow files on one rank."""

    def __init__(self, spec: LoaderSpec) -> None:
        if spec.rank == SLOW_RANK:
            slow = StorageSpec(type=__name__, direct=True)
            reading = {name: phase for name, phase in spec.phases.items() if not phase.fetch.reads_nothing}
            slowed = {name: replace(phase, fetch=replace(phase.fetch, storage=slow)) for name, phase in reading.items()}
            spec = replace(spec, phases={**spec.phases, **slowed})
        super().__init__(spec)
