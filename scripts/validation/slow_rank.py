"""Rank 1 alone reads from a slow drive: `reader.data_loader=validation.slow_rank`, a loader as in docs/extending.md."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import replace

from datagen.storage import posix
from datagen.storage.storage_base import StorageSpec
from dlemu.loaders import pytorch
from dlemu.loaders.loader_base import LoaderSpec, Phase

SLOW_RANK = 1
DELAY_SECONDS = 0.04


class SlowReader(posix.DirectReader):
    """One open file of a drive that answers one request at a time, so that more readers gain nothing."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._drive = os.open(os.path.dirname(path), os.O_RDONLY)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        fcntl.flock(self._drive, fcntl.LOCK_EX)
        time.sleep(DELAY_SECONDS)
        fcntl.flock(self._drive, fcntl.LOCK_UN)
        return super().read_into(buffer, offset)

    def close(self) -> None:
        os.close(self._drive)
        super().close()


class Storage(posix.Storage):
    """Files that are slow to read."""

    def open(self, path: str) -> SlowReader:
        return SlowReader(path)


class Loader(pytorch.Loader):
    """The pytorch loader, with slow files on one rank."""

    def __init__(self, spec: LoaderSpec) -> None:
        if spec.rank == SLOW_RANK:
            spec = replace(spec, phases={name: _slowed(phase) for name, phase in spec.phases.items()})
        super().__init__(spec)


def _slowed(phase: Phase) -> Phase:
    if phase.fetch.reads_nothing:
        return phase
    return replace(phase, fetch=replace(phase.fetch, storage=StorageSpec(type=__name__, direct=True)))
