"""Files that DALI reads whole, in the planned order: arrays and pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.dali import graph
from dlemu.contrib.dali.settings import LoaderSpec, Phase, reading_ahead
from dlemu.extend import DlemuError, format_base, hash_samples
from dlemu.extend import layout as dataset_layout

_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000008000000080800000000e164e1570000000c49444154789c6360a00e0000004800012eb83c7e"
    "0000000049454e44ae426082"
)
"""A grey picture of 8 x 8 pixels."""


class Files(graph.Feed):
    """The files of an epoch's samples in planned order; a file of several samples is read once for each of them."""

    def __init__(self, spec: LoaderSpec, phase: Phase, epoch: int, steps: int) -> None:
        self._spec, self._phase, self._fetch = spec, phase, phase.fetch
        self._samples = phase.fetch.layout.num_samples_per_file
        self._ids = phase.plan.batches(epoch, np.arange(1, steps + 1))
        picture = phase.fetch.format in ("jpeg", "png")
        self._picture: Any = format_base.format_named(phase.fetch.format) if picture else None
        shape = (*[1] * len(phase.fetch.dataset.record_dims or (1, 1)), self._samples)
        values = np.zeros(shape, phase.fetch.dataset.record_element_type)
        array = _npy_header(values) + values.tobytes()
        self._tail = graph.MemoryFile(_PNG if picture else array)

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
            except format_base.DamagedError as error:
                if self._fetch.dataset.source != "folder":  # of a user's own DALI decides by content what they are
                    raise format_base.damaged(path, str(error), error.offset) from error
            return read.nbytes
        if self._samples > 1 and read.shape[-1] != self._samples:
            raise format_base.damaged(
                path, f"the array holds {read.shape[-1]} samples, not {self._samples} as in the settings", 0
            )
        return len(_npy_header(read)) + read.nbytes


class Unread(graph.Feed):
    """Memory in place of files, for null storage, which reads nothing."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase

    def node(self) -> Any:
        return graph.memory_reader(
            max(1, dataset_layout.nominal_sample_bytes(self._phase.fetch.dataset)), self._phase.batch_size
        )

    def crop_numbers(self, step: int) -> list[int]:
        return list(range(self._phase.batch_size))


def _npy_header(array: NDArray[Any]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return header.getvalue()
