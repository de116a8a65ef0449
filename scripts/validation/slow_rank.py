"""Rank 1 alone reads slowly: `reader.data_loader=validation.slow_rank`, a loader as in docs/extending.md."""

from __future__ import annotations

import time
from dataclasses import replace

from datagen.storage import posix
from datagen.storage.storage_base import StorageSpec
from dlemu.loaders import pytorch
from dlemu.loaders.loader_base import LoaderSpec, Phase

SLOW_RANK = 1
DELAY_SECONDS = 0.08


class SlowReader(posix.DirectReader):
    """One open file whose reads take longer."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        time.sleep(DELAY_SECONDS)
        return super().read_into(buffer, offset)


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
