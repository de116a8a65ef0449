"""Records that DALI reads as streams: tfrecord files one after another, by the index file of each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.dali import graph
from dlemu.contrib.dali.settings import LoaderSpec, Phase, reading_ahead
from dlemu.extend import DatasetError, DlemuError, format_base, hash_samples

# The record that is read past the last batch: an Example without features, its length and its (unchecked) CRCs.
_TAIL = bytes(16)


@dataclass
class _File:
    """A file that is being read, with the records that are this rank's share."""

    position: int
    """Its place in the epoch."""
    extents: NDArray[np.int64]
    """(offset, bytes) of each record."""
    left: int
    """Records not delivered yet."""


class Records(graph.Feed):
    """The records of an epoch.

    DALI reports the file and the offset of each record, so the delivered samples are known in whatever order they come.
    """

    def __init__(self, spec: LoaderSpec, phase: Phase, epoch: int, steps: int) -> None:
        self._spec, self._phase, self._layout = spec, phase, phase.fetch.layout
        plan: Any = phase.plan  # of streams
        self._streams = plan.streams(epoch, steps)
        (self._index,) = format_base.format_named(phase.fetch.format).sides
        self._epoch, self._total = epoch, steps * phase.batch_size
        self._files = self._streams.files.tolist()
        self._positions = {self._layout.path(file): position for position, file in enumerate(self._files)}
        self._open: dict[int, _File] = {}
        self._done: set[int] = set()
        self._tail = graph.MemoryFile(_TAIL)
        self._own: list[graph.MemoryFile] = []

    def node(self) -> Any:
        samples, stride = self._layout.num_samples_per_file, self._streams.stride
        paths, indexes = list(self._positions), []
        for position, file in enumerate(self._files):
            if stride == 1 and self._streams.counts[position] == samples:
                indexes.append(_existing(self._index.path(self._layout, file)))
            else:
                indexes.append(self._in_memory(self._kept(position)))
        # As many records again for reading past the end: DALI delivers the whole first half before any of the second.
        ahead = self._in_memory(np.tile([0, len(_TAIL)], (self._total, 1)))
        seed = self._streams.seed + self._spec.rank
        return graph.record_reader(self._spec, [*paths, self._tail.path], [*indexes, ahead], seed)

    def crop_numbers(self, step: int) -> list[int]:
        # DALI does not reveal in advance which samples a shuffled batch holds: crops go by position in the epoch.
        first = (self._spec.rank << 48) + (self._epoch << 32) + (step - 1) * self._phase.batch_size
        return list(range(first, first + self._phase.batch_size))

    def account(self, step: int, read: Any) -> tuple[int, int]:
        ids, app_bytes = [], 0
        for position in range(self._phase.batch_size):
            path, _, offset = read[position].source_info().rpartition(" at index ")
            sample, size = self._delivered(path, int(offset))
            if not read[position].shape()[0]:
                raise DatasetError(f"{path}: the record at offset {offset} is an Example without the feature `image`")
            ids.append(sample)
            app_bytes += size
        return hash_samples(np.array(ids, np.int64)), app_bytes

    def suspects(self, step: int) -> list[int]:
        """Return one sample of each file that may be at fault."""
        begun = max(self._done, default=-1) + 1
        ahead = (reading_ahead(self._spec) + 1) * self._phase.batch_size + self._spec.shuffle_window
        positions = [at for at in range(min(begun + ahead, len(self._files))) if at not in self._done]
        return [self._files[position] * self._layout.num_samples_per_file for position in positions]

    def _delivered(self, path: str, offset: int) -> tuple[int, int]:
        """Return the sample number and the size in bytes of the record that was delivered from `offset` of a file."""
        position = self._positions.get(path)
        file = None if position is None or position in self._done else self._opened(position)
        record = 0 if file is None else int(np.searchsorted(file.extents[:, 0], offset))
        if file is None or record == len(file.extents) or file.extents[record, 0] != offset:
            raise DlemuError(f"DALI delivered a record at offset {offset} of {path}, which was not planned")
        file.left -= 1
        if not file.left:
            self._done.add(file.position)
            del self._open[file.position]
        begin = self._files[file.position] * self._layout.num_samples_per_file
        return begin + self._streams.first + record * self._streams.stride, int(file.extents[record, 1])

    def _opened(self, position: int) -> _File:
        if position not in self._open:
            self._open[position] = _File(position, self._kept(position), int(self._streams.counts[position]))
        return self._open[position]

    def _kept(self, position: int) -> NDArray[np.int64]:
        """Return (offset, bytes) of this rank's records of a file, from the file's index."""
        path = self._index.path(self._layout, self._files[position])
        samples = self._layout.num_samples_per_file
        extents = read_index(path)
        if len(extents) != samples:
            raise DatasetError(
                f"{path}: the index has {len(extents)} records, not {samples} as in the settings: set "
                "dataset.num_samples_per_file to the files' count, or make their indexes again (DALI's tfrecord2idx)"
            )
        return extents[self._streams.first :: self._streams.stride][: self._streams.counts[position]]

    def _in_memory(self, extents: NDArray[np.int64]) -> str:
        """Return the path of an index file in memory that lists these records."""
        self._own.append(graph.MemoryFile("".join(f"{start} {size}\n" for start, size in extents.tolist()).encode()))
        return self._own[-1].path


def read_index(path: str) -> NDArray[np.int64]:
    """Return (offset, bytes) of each record from an index file in DALI's format, shape (records, 2).

    Raises:
        DatasetError: the file does not exist or has another format.
    """
    try:
        with open(_existing(path), encoding="ascii") as file:
            numbers = np.array(file.read().split(), np.int64)
        return numbers.reshape(-1, 2)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: not a record index ({error}); wanted a line `offset bytes` per record") from error


def _existing(path: str) -> str:
    if not os.path.exists(path):
        raise DatasetError(
            f"{path} is missing: DALI finds the records of a tfrecord file by this index; make it with DALI's "
            f"`tfrecord2idx FILE {path}`, or use reader.data_loader=pytorch, which needs no index"
        )
    return path
