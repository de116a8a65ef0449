"""DALI's pipeline for one epoch: a reader of files, then operators that turn each file into the sample to deliver."""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.dali import depths
from dlemu.extend import DlemuError, format_base, hash_samples, loader_base, registry
from dlemu.extend import layout as dataset_layout


def library(name: str) -> Any:
    return registry.library(name, "dali", "reader.data_loader=dali")


_dali = library("nvidia.dali")
fn = library("nvidia.dali.fn")
_types = library("nvidia.dali.types")
_PNG = bytes.fromhex(  # a grey image of 8 x 8 pixels
    "89504e470d0a1a0a0000000d4948445200000008000000080800000000e164e1570000000c49444154789c6360a00e0000004800012eb83c7e"
    "0000000049454e44ae426082"
)


class Feed:
    """The input of a pipeline in one epoch. This base class is for null storage: its samples are zeros in memory."""

    def __init__(self, spec: loader_base.LoaderSpec, phase: loader_base.Phase) -> None:
        self.spec, self.phase = spec, phase
        self.ahead = sum(depths(spec)) + 2  # maximum of batches that DALI reads ahead of the one that it delivers
        self.samples_per_array = 1
        # With mmap, DALI would read only the pages of a crop instead of the whole sample.
        self.settings = {"prefetch_queue_depth": depths(spec)[0], "dont_use_mmap": True}

    def node(self) -> Any:
        """Return the reader node of the pipeline; it outputs the file of each sample."""
        sample = np.zeros(max(1, dataset_layout.nominal_sample_bytes(self.phase.fetch.dataset)), np.uint8)
        return fn.external_source(lambda: [sample] * self.phase.batch_size, no_copy=True, dtype=_types.UINT8)

    def indices(self, step: int) -> list[int]:
        """Return the index of each sample of a batch in the array of its file, which may hold several samples."""
        return [0] * self.phase.batch_size

    def check(self, step: int, read: Any) -> tuple[int, int]:
        """Check the files that DALI read for a batch; return the hash of its samples, and the number of bytes read.

        Raises DatasetError if a file is damaged or differs from the settings, DlemuError if a sample was not planned.
        """
        return 0, 0

    def suspects(self, step: int) -> list[int]:
        """Return the samples of which one may be faulty if DALI fails to make a batch."""
        return []

    def memory_file(self, data: bytes) -> str:
        """Return the path of a new file in memory, which exists as long as this feed."""
        descriptor = os.memfd_create("dlemu-dali")
        weakref.finalize(self, os.close, descriptor)
        os.write(descriptor, data)
        return f"/proc/self/fd/{descriptor}"


class FileFeed(Feed):
    """The files of an epoch's samples, in planned order; a file with several samples is read again for each of them."""

    def __init__(self, spec: loader_base.LoaderSpec, phase: loader_base.Phase, epoch: int, steps: int) -> None:
        super().__init__(spec, phase)
        self._layout, self._format_name = phase.fetch.layout, phase.fetch.format
        self._format: Any = format_base.format_named(self._format_name)
        self.samples_per_array = self._layout.num_samples_per_file
        self._ids = phase.plan.batches(epoch, np.arange(1, steps + 1))

    def node(self) -> Any:
        dataset, array = self.phase.fetch.dataset, io.BytesIO()
        shape = (*[1] * len(dataset.record_dims or (1, 1)), self.samples_per_array)
        np.save(array, np.zeros(shape, dataset.record_element_type))
        # DALI reads ahead even after the last batch: then it gets a file in memory, not the dataset again.
        padding = self.memory_file(array.getvalue() if self._format_name == "npy" else _PNG)
        paths = [self._layout.path(file) for file in (self._ids.ravel() // self.samples_per_array).tolist()]
        paths += [padding] * self.ahead * self.phase.batch_size
        if self._format_name != "npy":
            return fn.readers.file(files=paths, **self.settings)[0]
        return fn.readers.numpy(files=paths, use_o_direct=self.phase.fetch.storage.direct, **self.settings)

    def indices(self, step: int) -> list[int]:
        return [int(sample) % self.samples_per_array for sample in self._batch(step)]

    def _batch(self, step: int) -> NDArray[np.int64]:
        batch: NDArray[np.int64] = self._ids[min(step, len(self._ids)) - 1]
        return batch

    def check(self, step: int, read: Any) -> tuple[int, int]:
        ids, app_bytes = self._batch(step), 0
        for sample, file in zip(read, (ids // self.samples_per_array).tolist(), strict=True):
            planned = self._layout.path(file)
            if sample.source_info() != planned:
                raise DlemuError(f"DALI delivered {sample.source_info()} where {planned} was planned")
            app_bytes += self._file_bytes(planned, np.asarray(sample))
        return hash_samples(ids), app_bytes

    def suspects(self, step: int) -> list[int]:
        return self._ids[step - 1 : step + self.ahead].ravel().tolist()

    def _file_bytes(self, path: str, read: NDArray[Any]) -> int:
        """Return the size of a file from its content; raises DatasetError if it is damaged or has another shape."""
        if self._format_name != "npy":
            try:
                self._format.check(read.data)
            except format_base.DamagedError as error:
                if self.phase.fetch.dataset.source != "folder":  # a user's files may have any type that DALI detects
                    raise format_base.damaged(path, str(error), error.offset) from error
            return read.nbytes
        if self.samples_per_array > 1 and read.shape[-1] != self.samples_per_array:
            raise format_base.damaged(
                path, f"the array holds {read.shape[-1]} samples, not {self.samples_per_array} as in the settings", 0
            )
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(read))
        return header.tell() + read.nbytes


def build(feed: Feed, num_threads: int) -> Any:
    """Return a running pipeline. A batch has two outputs: the samples to deliver, and the files as they were read."""
    phase = feed.phase
    pipeline = _dali.Pipeline(
        batch_size=phase.batch_size, num_threads=num_threads, device_id=None, prefetch_queue_depth=depths(feed.spec)[1]
    )
    with pipeline:
        sample = read = feed.node()
        if feed.samples_per_array > 1:
            sample = fn.slice(read, start=_batchwise(feed.indices), shape=[1], axes=[-1])
        if phase.fetch.decode == "full" and phase.fetch.format in ("jpeg", "png") and not phase.fetch.reads_nothing:
            data = phase.fetch.dataset
            is_grey = data.source != "folder" and data.record_dims[2:] != (3,)
            sample = fn.decoders.image(sample, device="cpu", output_type=_types.GRAY if is_grey else _types.RGB)
        output = fn.reinterpret(sample, shape=[-1], dtype=_types.UINT8)
        if size := phase.fetch.resize_bytes:  # shorter samples are padded with zeros
            output = fn.slice(output, start=[0], shape=[size], axes=[0], out_of_bounds_policy="pad", fill_values=0)
        pipeline.set_outputs(output, read)
    pipeline.build()
    return pipeline


def _batchwise(numbers: Callable[[int], list[int]]) -> Any:
    """Return a node that outputs a number for each sample; `numbers(step)` returns those of a batch, from step 1 on."""
    batches = map(numbers, count(1))
    return fn.external_source(lambda: [np.array([number], np.int32) for number in next(batches)], dtype=_types.INT32)
