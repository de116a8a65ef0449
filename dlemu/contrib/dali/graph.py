"""DALI's pipeline of one epoch: a reader, then the operators that turn each file into the bytes the trainer gets."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from dlemu.contrib.dali.settings import LoaderSpec, Phase, depths, num_threads
from dlemu.extend import fetch, registry


def _part(name: str) -> Any:
    return registry.library(name, "dali", "reader.data_loader=dali")


_dali, _fn, _types = _part("nvidia.dali"), _part("nvidia.dali.fn"), _part("nvidia.dali.types")
_math, _tfrecord = _part("nvidia.dali.math"), _part("nvidia.dali.tfrecord")
_FARTHEST_PLACE = (1 << 31) // fetch.PLACE_BYTES - 1
"""DALI stores the start of a slice in 32 bits, so samples above 2 GiB are cropped within their first 2 GiB."""


class Feed:
    """What a pipeline reads in one epoch."""

    def node(self) -> Any:
        """Return the pipeline's reader node, whose output is the file (or the record) of each sample."""
        raise NotImplementedError  # each way of feeding has its own

    def crop_numbers(self, step: int) -> list[int]:
        """Return for each sample of a batch the number that seeds the choice of its crop."""
        raise NotImplementedError  # as above

    def indices(self, step: int) -> list[int] | None:
        """Return the index of each sample of a batch within its file's array; None where files hold one sample."""
        return None

    def account(self, step: int, read: Any) -> tuple[int, int]:
        """Return the hash of a batch's samples, and the bytes that were read for it.

        Raises DatasetError for a file that is damaged or does not match the settings, DlemuError for another sample
        than the planned one.
        """
        return 0, 0

    def suspects(self, step: int) -> list[int]:
        """Return the samples among which the faulty one is when a batch can't be made."""
        return []


def build(spec: LoaderSpec, phase: Phase, feed: Feed) -> Any:
    """Return a running pipeline with two outputs: the samples as the trainer gets them, and as they were read."""
    pipeline = _dali.Pipeline(
        batch_size=phase.batch_size,
        num_threads=num_threads(spec),
        device_id=None,
        prefetch_queue_depth=depths(spec)[1],
    )
    with pipeline:
        read = feed.node()
        whole = read
        if feed.indices(1) is not None:
            whole = _fn.slice(read, start=_batchwise(feed.indices, np.int32, _types.INT32), shape=[1], axes=[-1])
        if phase.fetch.decode == "full" and phase.fetch.format in ("jpeg", "png") and not phase.fetch.reads_nothing:
            colours = _types.RGB if phase.fetch.dataset.record_dims[2:] == (3,) else _types.GRAY
            whole = _fn.decoders.image(whole, device="cpu", output_type=colours)
        shipped = _fn.reinterpret(whole, shape=[-1], dtype=_types.UINT8)
        if phase.fetch.resize_bytes:
            shipped = _cropped(shipped, phase.fetch.resize_bytes, spec.seed, feed)
        pipeline.set_outputs(shipped, read)
    pipeline.build()
    return pipeline


def _cropped(flat: Any, size: int, seed: int, feed: Feed) -> Any:
    """Return `size` bytes of each sample from where `crop_start` says; short samples are filled with zeros."""
    word = _batchwise(
        lambda step: [fetch.crop_word(seed, number) for number in feed.crop_numbers(step)], np.int64, _types.INT64
    )
    spare = _math.max(_fn.cast(flat.shape(), dtype=_types.INT64) - size, 0)
    places = _math.min(spare // fetch.PLACE_BYTES, _FARTHEST_PLACE) + 1
    start = _fn.cast((word - word // places * places) * fetch.PLACE_BYTES, dtype=_types.INT32)
    return _fn.slice(flat, start=start, shape=[size], axes=[0], out_of_bounds_policy="pad", fill_values=0)


def _batchwise(numbers: Callable[[int], list[int] | None], dtype: type, dali_type: Any) -> Any:
    """Return a node that outputs one number per sample; `numbers` is called with the step of each batch."""
    step = 0

    def source() -> list[Any]:
        nonlocal step
        step += 1
        return [np.array([number], dtype) for number in numbers(step) or ()]

    return _fn.external_source(source, dtype=dali_type)


def file_reader(spec: LoaderSpec, paths: list[str], *, is_npy: bool) -> Any:
    """Return the reader node for whole files: arrays of npy files, or the bytes of others."""
    if is_npy:
        return _fn.readers.numpy(files=paths, use_o_direct=_odirect(spec), **_settings(spec))
    return _fn.readers.file(files=paths, **_settings(spec))[0]


def record_reader(spec: LoaderSpec, paths: list[str], indexes: list[str], seed: int) -> Any:
    """Return the reader node for the feature `image` of tfrecord records.

    It delivers the first half of all records (shard 0 of 2); the second half exists for reading past the last batch.
    """
    window: dict[str, Any] = {}
    if spec.shuffle_window:
        window = {"random_shuffle": True, "initial_fill": spec.shuffle_window, "seed": seed % (1 << 31)}
    image = _tfrecord.FixedLenFeature((), _tfrecord.string, "")
    return _fn.readers.tfrecord(
        path=paths,
        index_path=indexes,
        features={"image": image},
        use_o_direct=_odirect(spec),
        num_shards=2,
        shard_id=0,
        stick_to_shard=False,
        **window,
        **_settings(spec),
    )["image"]


def memory_reader(sample_bytes: int, batch_size: int) -> Any:
    """Return a node that reads nothing: it outputs the same sample in memory over and over, without copying."""
    sample = np.zeros(sample_bytes, np.uint8)
    return _fn.external_source(lambda: [sample] * batch_size, no_copy=True, dtype=_types.UINT8)


def _settings(spec: LoaderSpec) -> dict[str, Any]:
    # With mmap only the touched pages would be read: those of a crop, not of the whole sample.
    return {"prefetch_queue_depth": depths(spec)[0], "dont_use_mmap": True}


def _odirect(spec: LoaderSpec) -> bool:
    return spec.phases["train"].fetch.storage.direct


class MemoryFile:
    """A file in memory with a path; it is gone when this object is."""

    def __init__(self, data: bytes) -> None:
        descriptor = os.memfd_create("dlemu-dali")
        weakref.finalize(self, os.close, descriptor)
        self.path = f"/proc/self/fd/{descriptor}"
        with open(self.path, "wb") as file:
            file.write(data)
