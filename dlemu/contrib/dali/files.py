"""Files that DALI reads whole, in the planned order: arrays and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.content import Content
from datagen.formats import jpeg, png
from datagen.formats._array import array_header
from datagen.formats._picture import PictureFormat, Shape
from datagen.formats.format_base import DamagedError, damaged
from datagen.layout import nominal_sample_bytes
from dlemu.contrib.dali import graph
from dlemu.contrib.dali.settings import reading_ahead
from dlemu.extend import DlemuError, LoaderSpec, Phase
from dlemu.plan.samples import hash_samples

_PICTURES = {"jpeg": jpeg.Format(), "png": png.Format()}


class Files(graph.Feed):
    """The files of an epoch's samples in planned order; a file of several samples is read once for each of them."""

    def __init__(self, spec: LoaderSpec, phase: Phase, epoch: int, steps: int) -> None:
        self._spec, self._phase, self._fetch = spec, phase, phase.fetch
        self._samples = phase.fetch.layout.num_samples_per_file
        self._ids = phase.plan.batches(epoch, np.arange(1, steps + 1))
        self._picture = _PICTURES.get(phase.fetch.format)
        self._tail = graph.MemoryFile(_smallest_file(phase, self._picture))

    def node(self) -> Any:
        path = self._fetch.layout.path
        files = (self._ids.ravel() // self._samples).tolist()
        paths = [path(file) for file in files]
        # The reader reads past the last batch: let it read a file in memory there, not the dataset once more.
        paths += [self._tail.path] * reading_ahead(self._spec) * self._phase.batch_size
        return graph.file_reader(self._spec, paths, is_npy=self._fetch.format == "npy")

    def indices(self, step: int) -> list[int] | None:
        return (self._batch(step) % self._samples).tolist() if self._samples > 1 else None

    def crop_numbers(self, step: int) -> list[int]:
        return [int(sample) for sample in self._batch(step)]

    def _batch(self, step: int) -> NDArray[np.int64]:
        batch: NDArray[np.int64] = self._ids[min(step, len(self._ids)) - 1]
        return batch

    def account(self, step: int, read: Any) -> tuple[int, int]:
        ids, path, app_bytes = self._batch(step), self._fetch.layout.path, 0
        for index, file in enumerate((ids // self._samples).tolist()):
            sample, planned = read[index], path(file)
            if sample.source_info() != planned:
                raise DlemuError(f"DALI delivered {sample.source_info()} where {planned} was planned")
            app_bytes += self._file_bytes(planned, np.asarray(sample))
        return hash_samples(ids), app_bytes

    def suspects(self, step: int) -> list[int]:
        return self._ids[step - 1 : step + reading_ahead(self._spec)].ravel().tolist()

    def _file_bytes(self, path: str, read: NDArray[Any]) -> int:
        """Return the size of a file that was read, which must be whole."""
        if self._picture is not None:
            try:
                self._picture.check(read.data)
            except DamagedError as error:
                if self._fetch.dataset.source != "folder":  # of a user's own DALI decides by content what they are
                    raise damaged(path, str(error), error.offset) from error
            return read.nbytes
        if self._samples > 1 and read.shape[-1] != self._samples:
            raise damaged(path, f"the array holds {read.shape[-1]} samples, not {self._samples} as in the settings", 0)
        return len(array_header(read.dtype.str, read.shape)) + read.nbytes


class Unread(graph.Feed):
    """Memory in place of files, for null storage, which reads nothing."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase

    def node(self) -> Any:
        return graph.memory_reader(max(1, nominal_sample_bytes(self._phase.fetch.dataset)), self._phase.batch_size)

    def crop_numbers(self, step: int) -> list[int]:
        return list(range(self._phase.batch_size))


def _smallest_file(phase: Phase, picture: PictureFormat | None) -> bytes:
    fetch = phase.fetch
    if picture is not None:
        shape_8x8 = Shape(8, 8, 1)
        return picture.encode(Content(0), 0, shape_8x8, picture.min_bytes(shape_8x8)).tobytes()
    shape = (*[1] * len(fetch.dataset.record_dims or (1, 1)), fetch.layout.num_samples_per_file)
    values = np.zeros(shape, fetch.dataset.record_element_type)
    return array_header(values.dtype.str, shape) + values.tobytes()
