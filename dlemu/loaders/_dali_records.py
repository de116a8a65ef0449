"""Records that DALI reads as streams: tfrecord files one behind the other, by the index that is beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DatasetError, DlemuError
from datagen.formats.tfrecord import Index
from dlemu.loaders import _dali_graph as graph
from dlemu.loaders._dali_settings import reading_ahead
from dlemu.loaders.loader_base import LoaderSpec, Phase
from dlemu.plan.samples import hash_samples
from dlemu.plan.streams import StreamBatchPlan

# A record of its own for reading ahead: an Example without features (no bytes), its length and the sums, unchecked.
_TAIL = bytes(16)


@dataclass
class _File:
    """One file's records that this rank keeps."""

    number: int
    extents: NDArray[np.int64]
    """(offset, bytes) of each."""
    left: int
    """Records not delivered yet."""


class Records:
    """The records of an epoch.

    DALI says of each record from where in which file it came: what was delivered is known, in whatever order.
    """

    def __init__(self, spec: LoaderSpec, phase: Phase, epoch: int, steps: int) -> None:
        self._spec, self._phase, self._layout = spec, phase, phase.fetch.layout
        self._streams = cast(StreamBatchPlan, phase.plan).streams(epoch, steps)
        self._epoch, self._total = epoch, steps * phase.batch_size
        self._files = self._streams.files.tolist()
        self._numbers = {self._layout.path(file): position for position, file in enumerate(self._files)}
        self._open: dict[int, _File] = {}
        self._done: set[int] = set()
        self._tail = graph.MemoryFile(_TAIL)
        self._own: list[graph.MemoryFile] = []

    def node(self) -> Any:
        samples, stride = self._layout.num_samples_per_file, self._streams.stride
        paths, indexes = list(self._numbers), []
        for position, file in enumerate(self._files):
            if stride == 1 and self._streams.counts[position] == samples:
                indexes.append(_there(Index().path(self._layout, file)))
            else:
                indexes.append(self._in_memory(self._kept(position)))
        # As many again to read ahead: DALI then delivers all of the first half before any of the second.
        ahead = self._in_memory(np.tile([0, len(_TAIL)], (self._total, 1)))
        seed = self._streams.seed + self._spec.rank
        return graph.record_reader(self._spec, [*paths, self._tail.path], [*indexes, ahead], seed)

    def indices(self, step: int) -> None:
        return None

    def crop_numbers(self, step: int) -> list[int]:
        # Which samples a shuffled batch will hold is DALI's secret: each position in the rank's epoch has a crop.
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
        """Return a sample of each file that may be at fault."""
        begun = max(self._done, default=-1) + 1
        ahead = (reading_ahead(self._spec) + 1) * self._phase.batch_size + self._spec.shuffle_window
        positions = [at for at in range(min(begun + ahead, len(self._files))) if at not in self._done]
        return [self._files[position] * self._layout.num_samples_per_file for position in positions]

    def _delivered(self, path: str, offset: int) -> tuple[int, int]:
        """Return the number and the bytes of the record that was delivered from there."""
        position = self._numbers.get(path)
        if position is None or position in self._done:
            raise _unplanned(path, offset)
        file = self._open.get(position) or self._opened(position)
        record = int(np.searchsorted(file.extents[:, 0], offset))
        if record == len(file.extents) or file.extents[record, 0] != offset:
            raise _unplanned(path, offset)
        file.left -= 1
        if not file.left:
            self._done.add(position)
            del self._open[position]
        begin = file.number * self._layout.num_samples_per_file
        return begin + self._streams.first + record * self._streams.stride, int(file.extents[record, 1])

    def _opened(self, position: int) -> _File:
        count = int(self._streams.counts[position])
        file = self._open[position] = _File(self._files[position], self._kept(position), count)
        return file

    def _kept(self, position: int) -> NDArray[np.int64]:
        """Return (offset, bytes) of each record of a file that this rank keeps, from the file's index."""
        path = Index().path(self._layout, self._files[position])
        samples = self._layout.num_samples_per_file
        extents = read_index(path)
        if len(extents) != samples:
            raise DatasetError(
                f"{path}: the index has {len(extents)} records, not {samples} as in the settings: set "
                "dataset.num_samples_per_file to what the files hold, or make their indexes again (DALI's tfrecord2idx)"
            )
        return extents[self._streams.first :: self._streams.stride][: self._streams.counts[position]]

    def _in_memory(self, extents: NDArray[np.int64]) -> str:
        """Return the path of an index of these records."""
        self._own.append(graph.MemoryFile("".join(f"{start} {size}\n" for start, size in extents.tolist()).encode()))
        return self._own[-1].path


def read_index(path: str) -> NDArray[np.int64]:
    """Return (offset, bytes) of each record of an index as DALI wants it, shape (records, 2).

    Raises:
        DatasetError: there is none, or it is not of that kind.
    """
    try:
        with open(_there(path), encoding="ascii") as file:
            numbers = np.array(file.read().split(), np.int64)
        return numbers.reshape(-1, 2)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: not a record index ({error}); wanted a line `offset bytes` for each") from error


def _there(path: str) -> str:
    if not os.path.exists(path):
        raise DatasetError(
            f"{path} is missing, and DALI finds records by it: make it with DALI's `tfrecord2idx FILE {path}`, or "
            "use reader.data_loader=pytorch, which needs none"
        )
    return path


def _unplanned(path: str, offset: int) -> DlemuError:
    return DlemuError(f"DALI delivered a record at offset {offset} of {path}, which was not planned")
