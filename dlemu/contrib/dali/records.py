"""Records that DALI reads as streams: tfrecord files one after another, by the index file of each."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.dali.pipeline import Feed, fn, library
from dlemu.extend import DatasetError, DlemuError, format_base, hash_samples, loader_base

_tfrecord = library("nvidia.dali.tfrecord")
# The record that DALI reads on after the last batch: an Example without features. DALI does not check the CRCs in it.
_TAIL = bytes(16)


class Records(Feed):
    """The records of an epoch.

    DALI reports the file and the offset of each record, so the delivered samples are known in whatever order they come.
    """

    def __init__(self, spec: loader_base.LoaderSpec, phase: loader_base.Phase, epoch: int, steps: int) -> None:
        super().__init__(spec, phase)
        self._layout = phase.fetch.layout
        plan: Any = phase.plan  # of streams
        self._streams = plan.streams(epoch, steps)
        (self._index,) = format_base.format_named(phase.fetch.format).sides
        self._total = steps * phase.batch_size
        self._files = self._streams.files.tolist()
        self._positions = {self._layout.path(file): position for position, file in enumerate(self._files)}
        self._undelivered: dict[int, dict[int, tuple[int, int]]] = {}
        """Position of a file that has begun -> offset of each record not yet delivered -> its (sample, bytes)."""

    def node(self) -> Any:
        streams, samples = self._streams, self._layout.num_samples_per_file
        indexes = [
            self._index_path(at) if streams.stride == 1 and count == samples else self._memory_index(self._extents(at))
            for at, count in enumerate(streams.counts.tolist())
        ]
        # Shard 0 of 2 is the first half of all records: the second is for reading past the last batch.
        indexes.append(self._memory_index(np.tile([0, len(_TAIL)], (self._total, 1))))
        return fn.readers.tfrecord(
            path=[*self._positions, self.memory_file(_TAIL)],
            index_path=indexes,
            features={"image": _tfrecord.FixedLenFeature((), _tfrecord.string, "")},
            use_o_direct=self.phase.fetch.storage.direct,
            num_shards=2,
            shard_id=0,
            stick_to_shard=False,
            random_shuffle=self.spec.shuffle_window > 0,
            initial_fill=max(1, self.spec.shuffle_window),
            seed=(self._streams.seed + self.spec.rank) % (1 << 31),
            **self.settings,
        )["image"]

    def account(self, step: int, read: Any) -> tuple[int, int]:
        ids, app_bytes = [], 0
        for record in read:
            path, _, offset = record.source_info().rpartition(" at index ")
            position = self._positions.get(path, -1)
            if position >= 0 and position not in self._undelivered:
                self._undelivered[position] = self._planned(position)
            planned = self._undelivered.get(position, {}).pop(int(offset), None)
            if planned is None:
                raise DlemuError(f"DALI delivered a record at offset {offset} of {path}, which was not planned")
            if not record.shape()[0]:
                raise DatasetError(f"{path}: the record at offset {offset} is an Example without the feature `image`")
            ids.append(planned[0])
            app_bytes += planned[1]
        return hash_samples(np.array(ids, np.int64)), app_bytes

    def suspects(self, step: int) -> list[int]:
        """Return one sample of each file that may be at fault."""
        done = [position for position, records in self._undelivered.items() if not records]
        ahead = (self.ahead + 1) * self.phase.batch_size + self.spec.shuffle_window
        last = min(max(done, default=-1) + 1 + ahead, len(self._files))
        return [self._files[at] * self._layout.num_samples_per_file for at in range(last) if at not in done]

    def _planned(self, position: int) -> dict[int, tuple[int, int]]:
        """Return offset -> (sample, bytes) of this rank's records of a file."""
        first = self._files[position] * self._layout.num_samples_per_file + self._streams.first
        extents, stride = self._extents(position).tolist(), self._streams.stride
        return {start: (first + record * stride, size) for record, (start, size) in enumerate(extents)}

    def _extents(self, position: int) -> NDArray[np.int64]:
        """Return (offset, bytes) of this rank's records of a file, from the file's index in DALI's format."""
        path, streams, samples = self._index_path(position), self._streams, self._layout.num_samples_per_file
        try:
            with open(path, encoding="ascii") as file:
                extents = np.array(file.read().split(), np.int64).reshape(samples, 2)
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"{path} has no line `offset bytes` for each of {samples} records ({error}): set "
                "dataset.num_samples_per_file to the files' count, or make their indexes again (DALI's tfrecord2idx)"
            ) from error
        return extents[streams.first :: streams.stride][: streams.counts[position]]

    def _index_path(self, position: int) -> str:
        path: str = self._index.path(self._layout, self._files[position])
        if not os.path.exists(path):
            raise DatasetError(
                f"{path} is missing: DALI finds the records of a tfrecord file by this index; make it with DALI's "
                f"`tfrecord2idx FILE {path}`, or use reader.data_loader=pytorch, which needs no index"
            )
        return path

    def _memory_index(self, extents: NDArray[np.int64]) -> str:
        """Return the path of an index file in memory that lists these records."""
        return self.memory_file("".join(f"{start} {size}\n" for start, size in extents.tolist()).encode())
