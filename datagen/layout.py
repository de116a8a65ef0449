"""Names, sizes and places of a dataset's files by arithmetic: nothing here grows with the number of samples.

The names and the law of sizes are DLIO's, so either tool trains on the other's datasets.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from datagen import quantiles
from datagen.spec import PICTURES, DatasetSpec, Split

SIZE_SEED = 10
"""DLIO seeds the draw of record shapes with this number, whatever the dataset."""
DRAW_CHUNK_FILES = 1 << 16
"""Files whose shapes are drawn at a time while skipping to the first one wanted."""


_EXTENSIONS = {"webdataset": "tar"}
"""Formats whose files are not called by the format's own name."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the samples of one split lie. Sample s is number s % samples of file s // samples, files in name order."""

    folder: str
    """The split's folder, `DATA_FOLDER/train` or `DATA_FOLDER/valid`."""
    split: Split
    num_files: int
    """Files in use: the first so many in name order."""
    num_samples_per_file: int
    extension: str
    file_prefix: str = "img"
    named_files: int = 0
    """The number of files that the names state (`_of_N`), which may be larger than `num_files`."""
    num_subfolders: int = 0
    first_running_index: int = 0
    """Index of file 0 among all files of the dataset, training files first: it keys sizes and content."""
    names: tuple[str, ...] | None = None
    """Paths below `folder` of files with names of their own, in order; None when the names follow the rule."""
    used_bytes: int = 0
    """Of each file, which is cut into samples of one length: what lies behind belongs to none; 0: all of it is used."""

    @property
    def num_samples(self) -> int:
        return self.num_files * self.num_samples_per_file

    def name(self, file: int) -> str:
        """Return a file's path below `folder`."""
        if self.names is not None:
            return self.names[file]
        base = f"{self.file_prefix}_{str(file).zfill(len(str(self.named_files)))}{self.ruled_ending}"
        return f"{self.subfolder(file)}/{base}" if self.num_subfolders > 1 else base

    @functools.cached_property
    def ruled_ending(self) -> str:
        """What names by the rule end in after the file's number."""
        return f"_of_{self.named_files}.{self.extension}"

    def subfolder(self, file: int) -> str:
        """Return the sub-folder of a file whose name follows the rule; empty without sub-folders."""
        return subfolder_name(file, self.num_subfolders) if self.num_subfolders > 1 else ""

    def path(self, file: int) -> str:
        """Return the path of a file, 0 to num_files - 1."""
        return self.folder + "/" + self.name(file)

    def locate(self, sample: int) -> tuple[int, int]:
        """Return the file that holds a sample and the sample's index in it.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= sample < self.num_files * self.num_samples_per_file:
            raise IndexError(f"sample {sample} of {self.num_samples} in {self.folder}")
        return divmod(sample, self.num_samples_per_file)

    def running_index(self, file: int) -> int:
        """Return the file's index among all files of the dataset."""
        return self.first_running_index + file

    def folders(self) -> list[str]:
        """Return every folder that holds files."""
        if self.num_subfolders > 1:
            return [f"{self.folder}/{subfolder_name(i, self.num_subfolders)}" for i in range(self.num_subfolders)]
        return [self.folder]


def layouts(spec: DatasetSpec) -> tuple[Layout, Layout]:
    """Return the layouts of the training and validation files that `spec` asks for."""

    def layout(split: Split, files: int, subfolders: int, first_running_index: int) -> Layout:
        return Layout(
            folder=os.path.join(spec.data_folder, split),
            split=split,
            num_files=files,
            num_samples_per_file=spec.num_samples_per_file,
            extension=_EXTENSIONS.get(spec.format, spec.format.rpartition(".")[2]),
            file_prefix=spec.file_prefix,
            named_files=files,
            num_subfolders=subfolders,
            first_running_index=first_running_index,
        )

    return (
        layout("train", spec.num_files_train, spec.num_subfolders_train, 0),
        layout("valid", spec.num_files_eval, spec.num_subfolders_eval, spec.num_files_train),
    )


def subfolder_name(index: int, count: int) -> str:
    """Return a sub-folder's name: its index, zero-padded to the width of their count."""
    index %= count
    return str(index).rjust(len(str(count)), "0")


def record_shapes(spec: DatasetSpec, start: int, stop: int) -> NDArray[np.int64]:
    """Return the record shapes of files `start` to `stop` - 1 as an array (files, axes).

    All have `record_dims` where these are given. Else the law is DLIO's, for two axes: seed 10, two normals a file
    with mean int(sqrt(L)) and deviation S / (2 sqrt(L)), where L is `record_length_bytes` and S its deviation; each
    cut to a whole number, at least 1. S = 0 draws nothing. A file's shape does not depend on how many there are.
    Sizes given by their quantiles are near squares, rounded so that the mean stays.
    """
    if spec.record_dims:
        return np.tile(np.array(spec.record_dims, np.int64), (stop - start, 1))
    if spec.record_length_bytes_quantiles:
        shares = quantiles.even_shares(start, stop)
        sizes = quantiles.values_at(spec.record_length_bytes_quantiles, spec.record_length_bytes, shares)
        rows = np.maximum(np.sqrt(sizes), 1).astype(np.int64)
        return np.stack([rows, np.maximum(np.rint(sizes / rows), 1).astype(np.int64)], axis=1)
    root = math.sqrt(spec.record_length_bytes)
    mean = int(root)
    if spec.record_length_bytes_stdev <= 0:
        return np.full((stop - start, 2), mean, np.int64)
    random = np.random.RandomState(SIZE_SEED)
    for skipped in range(0, start, DRAW_CHUNK_FILES):
        random.standard_normal(2 * min(DRAW_CHUNK_FILES, start - skipped))
    deviation = spec.record_length_bytes_stdev / 2.0 / root
    drawn = random.normal(mean, deviation, (stop - start, 2))
    return cast("NDArray[np.int64]", np.maximum(drawn.astype(np.int64), 1))


def nominal_sample_bytes(spec: DatasetSpec) -> int:
    """Return the bytes of a sample of mean shape, before compression; of a picture those of its file.

    Where it has columns, they are those that are read.
    """
    if spec.format in PICTURES or spec.record_length_bytes_quantiles:
        return int(spec.record_length_bytes) * spec.element_bytes
    if spec.format == "parquet" and spec.parquet.columns:
        return sum(column.value_bytes for column in spec.parquet.columns if column.read)
    shape = spec.record_dims or (int(math.sqrt(spec.record_length_bytes)),) * 2
    return math.prod(shape) * spec.element_bytes


def stored_sample_bytes(spec: DatasetSpec) -> int:
    """Return the same, with the columns that are not read."""
    if spec.format == "parquet" and spec.parquet.columns:
        return sum(column.value_bytes for column in spec.parquet.columns)
    return nominal_sample_bytes(spec)


def payload_bytes(spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the samples in files with records of these shapes (files, axes), before compression."""
    if spec.format == "parquet" and spec.parquet.columns:
        return np.full(len(shapes), stored_sample_bytes(spec) * spec.num_samples_per_file, np.int64)
    return cast("NDArray[np.int64]", shapes.prod(axis=1) * spec.element_bytes * spec.num_samples_per_file)
