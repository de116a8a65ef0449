"""Where samples are on storage and in memory.

- `Layout`: the names and paths of files, by DLIO's rules, so that either tool can use the other's datasets. They are
  computed, so that memory and time do not grow with the number of samples.
- `Samples`: the samples of a batch, as numbers or as runs of consecutive numbers (`Runs`).
- `Places`: the byte ranges of memory that a batch is read into.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from datagen import quantiles, registry
from datagen.spec import DatasetSpec, ParquetColumn, Split

Run = tuple[int, int]  # consecutive samples of a batch: (number of the first sample, how many)
Places = NDArray[np.int64]
"""(offset, bytes) of each sample in the memory of a batch, shape (samples, 2). Row groups are not cut into samples:
the places are those of the byte ranges read, or of the decoded columns (`datagen.groups`)."""
NO_PLACES: Places = np.empty((0, 2), np.int64)
SIZE_SEED = 10  # DLIO draws the record shapes of every dataset with this seed
DRAW_CHUNK_FILES = 1 << 16  # files whose random numbers are drawn and discarded at a time


def endings_of(format_name: str) -> tuple[str, ...]:
    """Return the extensions of a format's files. Files that dlemu makes have the first one.

    They are `ENDINGS` of a module in `datagen.formats`, else the last part of the name: no user's module is imported.
    """
    default = (format_name.rpartition(".")[2],)
    return cast("tuple[str, ...]", registry.built_in("datagen.formats", format_name, "ENDINGS", default))


def has_own_length(spec: DatasetSpec) -> bool:
    """Return whether a file has `record_length_bytes` bytes, whatever the shape of its record, as an image has."""
    return bool(registry.built_in("datagen.formats", spec.format, "HAS_OWN_LENGTH", False))


def columns_of(spec: DatasetSpec) -> tuple[ParquetColumn, ...]:
    """Return the columns of a table; empty for formats without columns."""
    return spec.parquet.columns if registry.built_in("datagen.formats", spec.format, "HAS_COLUMNS", False) else ()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of one split, in name order. With N samples per file, sample s is sample s % N of file s // N."""

    folder: str  # the split's folder, `DATA_FOLDER/train` or `DATA_FOLDER/valid`
    split: Split
    num_files: int  # number of files in use, the first in name order
    num_samples_per_file: int
    extension: str
    file_prefix: str = "img"
    named_files: int = 0  # N in the file names (`_of_N`), which may be larger than `num_files`
    num_subfolders: int = 0
    first_running_index: int = 0  # index of file 0 among all files, training first; selects size and content
    names: tuple[str, ...] | None = None
    """Paths below `folder`, in order, of files that do not follow the pattern PREFIX_I_of_N; None when they do."""
    used_bytes: int = 0  # bytes of each file that are cut into equal samples; 0: the whole file

    @property
    def num_samples(self) -> int:
        return self.num_files * self.num_samples_per_file

    def name(self, file: int) -> str:
        """Return a file's path below `folder`."""
        if self.names is not None:
            return self.names[file]
        base = f"{self.file_prefix}_{str(file).zfill(len(str(self.named_files)))}{self.pattern_suffix}"
        return f"{subfolder_name(file, self.num_subfolders)}/{base}" if self.num_subfolders > 1 else base

    @functools.cached_property
    def pattern_suffix(self) -> str:
        """The end of names that follow the pattern, after the file's index."""
        return f"_of_{self.named_files}.{self.extension}"

    def path(self, file: int) -> str:
        return self.folder + "/" + self.name(file)

    def locate(self, sample: int) -> tuple[int, int]:
        """Return the file that holds a sample, and the sample's index in it. Raises IndexError if there is none."""
        if not 0 <= sample < self.num_files * self.num_samples_per_file:
            raise IndexError(f"sample {sample} of {self.num_samples} in {self.folder}")
        return divmod(sample, self.num_samples_per_file)

    def folders(self) -> list[str]:
        if self.num_subfolders > 1:
            return [f"{self.folder}/{subfolder_name(i, self.num_subfolders)}" for i in range(self.num_subfolders)]
        return [self.folder]


def layouts(spec: DatasetSpec) -> tuple[Layout, Layout]:
    """Return the layouts of the training and validation files that `spec` requests."""
    train = Layout(
        folder=os.path.join(spec.data_folder, "train"),
        split="train",
        num_files=spec.num_files_train,
        num_samples_per_file=spec.num_samples_per_file,
        extension=endings_of(spec.format)[0],
        file_prefix=spec.file_prefix,
        named_files=spec.num_files_train,
        num_subfolders=spec.num_subfolders_train,
    )
    valid = replace(
        train,
        folder=os.path.join(spec.data_folder, "valid"),
        split="valid",
        num_files=spec.num_files_eval,
        named_files=spec.num_files_eval,
        num_subfolders=spec.num_subfolders_eval,
        first_running_index=spec.num_files_train,
    )
    return train, valid


def subfolder_name(index: int, count: int) -> str:
    """Return a sub-folder's name: its index, zero-padded to the number of digits of `count`."""
    return str(index % count).zfill(len(str(count)))


def record_shapes(spec: DatasetSpec, start: int, stop: int) -> NDArray[np.int64]:
    """Return the record shapes of files `start` to `stop` - 1 as an array of shape (files, axes).

    With `record_dims`, all files have this shape. Otherwise shapes have two axes. Sizes given as quantiles become near
    squares, rounded so that the mean is kept. Other sizes, of mean L and standard deviation S, are drawn as DLIO does,
    with seed 10, each axis by itself. The shape of a file does not depend on the number of files.

        axis = max(1, int(normal(mean=int(sqrt(L)), standard_deviation=S / 2 / sqrt(L))))
    """
    if spec.record_dims:
        return np.tile(np.array(spec.record_dims, np.int64), (stop - start, 1))
    if spec.record_length_bytes_quantiles:
        probabilities = quantiles.low_discrepancy(start, stop)
        sizes = quantiles.values_at(spec.record_length_bytes_quantiles, spec.record_length_bytes, probabilities)
        rows = np.maximum(np.sqrt(sizes), 1).astype(np.int64)
        return np.stack([rows, np.maximum(np.rint(sizes / rows), 1).astype(np.int64)], axis=1)
    root = math.sqrt(spec.record_length_bytes)
    mean = int(root)
    if spec.record_length_bytes_stdev <= 0:
        return np.full((stop - start, 2), mean, np.int64)
    random = np.random.RandomState(SIZE_SEED)
    for discarded in range(0, start, DRAW_CHUNK_FILES):  # the numbers of the files before `start`
        random.standard_normal(2 * min(DRAW_CHUNK_FILES, start - discarded))
    axes = random.normal(mean, spec.record_length_bytes_stdev / 2.0 / root, (stop - start, 2))
    return cast("NDArray[np.int64]", np.maximum(axes.astype(np.int64), 1))


def nominal_sample_bytes(spec: DatasetSpec) -> int:
    """Return the mean bytes of a sample before compression: of an image, the file; of a table, the columns read."""
    if has_own_length(spec) or spec.record_length_bytes_quantiles:
        return int(spec.record_length_bytes) * spec.element_bytes
    if columns := columns_of(spec):
        return sum(column.value_bytes for column in columns if column.read)
    shape = spec.record_dims or (int(math.sqrt(spec.record_length_bytes)),) * 2
    payload_bytes = math.prod(shape) * spec.element_bytes
    if spec.source == "folder":  # the size is that of the files
        return payload_bytes
    return round(payload_bytes * float(registry.built_in("datagen.formats", spec.format, "STORED_BYTES", 1)))


def stored_sample_bytes(spec: DatasetSpec) -> int:
    """Return the mean bytes of a sample before compression, including table columns that are not read."""
    return sum(column.value_bytes for column in columns_of(spec)) or nominal_sample_bytes(spec)


class Runs:
    """The samples of a batch, given as runs in the order requested, which takes less memory than their numbers."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def tolist(self) -> list[int]:
        """Return the sample numbers, like `ndarray.tolist`."""
        return list(itertools.chain.from_iterable(range(first, first + count) for first, count in self.runs))


Samples = Sequence[int] | NDArray[np.int64] | Runs  # sample numbers of a batch


def sample_numbers(samples: Samples) -> Sequence[int]:
    """Return the sample numbers of a batch as Python integers, because loops over NumPy's are slow."""
    return samples.tolist() if isinstance(samples, np.ndarray | Runs) else samples


def cut_runs(samples: Samples, samples_per_file: int) -> list[Run]:
    """Cut a batch into runs, each within a file: with 4 samples per file, [7, 8, 9, 3] into (7, 1), (8, 2), (3, 1)."""
    file_runs: list[Run] = []
    if isinstance(samples, Runs):
        for first, count in samples.runs:
            end = first + count  # exclusive, as in all runs here
            while first < end:
                file_end = first - first % samples_per_file + samples_per_file
                file_runs.append((first, min(end, file_end) - first))
                first = file_end
        return file_runs
    if not len(samples):
        return file_runs
    if len(samples) > 256:  # for shorter batches, the loop below is faster than NumPy
        array = np.asarray(samples, np.int64)
        previous, following = array[:-1], array[1:]
        begins_run = (following != previous + 1) | (following % samples_per_file == 0)
        begins = np.concatenate([[0], np.flatnonzero(begins_run) + 1])
        return list(zip(array[begins].tolist(), np.diff(begins, append=len(array)).tolist(), strict=True))
    numbers = sample_numbers(samples)
    first = end = numbers[0]
    for sample in numbers:
        if sample != end or (sample % samples_per_file == 0 and sample != first):  # after a gap, or in another file
            file_runs.append((first, end - first))
            first = end = sample
        end += 1
    return [*file_runs, (first, end - first)]


def places_from(flat: Sequence[int]) -> Places:
    """Return the places in a flat sequence: offset, bytes, offset, bytes, ..."""
    return np.array(flat, np.int64).reshape(-1, 2)


def even_places(first: int, step: int, size_bytes: int, count: int) -> Places:
    """Return `count` places of `size_bytes` bytes, one every `step` bytes from offset `first` on."""
    places = np.empty((count, 2), np.int64)
    places[:, 0] = np.arange(first, first + count * step, step)
    places[:, 1] = size_bytes
    return places
