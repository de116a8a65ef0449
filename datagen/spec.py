"""The settings that define a dataset: an immutable, picklable value, which the manifest beside the files holds.

Settings that DLIO has, too, have its names: its users know them, and its YAML files work.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from datagen import quantiles
from datagen.settings import BYTES, at_least, build, problems, refuse

__all__ = ["BLOCK_BYTES", "Compression", "DatasetSpec", "Decode", "Hdf5", "Split", "build", "refuse"]

Split = Literal["train", "valid"]
Compression = Literal["none", "gzip", "zip", "snappy", "zstd"]
Decode = Literal["none", "full"]
EngineName = Literal["matched", "fast", "library"]

BLOCK_BYTES = 4096  # every block of the payload is unique and names its file and offset (`datagen.content`)
MAX_RECORD_BYTES = 1 << 50
MAX_DATASET_BYTES = 1 << 62
"""Both are larger than any dataset, yet small enough that offsets and sums of sizes fit in 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Hdf5:
    """How HDF5 files are laid out."""

    chunk_dims: tuple[int, ...] = ()
    """Shape of a chunk; the first axis counts samples. Empty: `enable_chunking` and `chunk_size` decide."""
    num_dset_per_record: Annotated[int, at_least(1)] = 1
    """HDF5 datasets over which each record is split, along the first axis of `record_dims`."""
    max_shape: tuple[int, ...] = ()
    """Maximum shape of a record (HDF5's maxshape); if set, the HDF5 datasets are chunked."""


@dataclass(frozen=True, kw_only=True)
class ParquetColumn:
    """One column of a Parquet file."""

    name: str
    """Name of the column."""
    dtype: Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"] = "float32"
    """Type of the numbers."""
    size: Annotated[int, at_least(1)] = 1
    """Numbers in each value; if above 1, types of 4 or 8 bytes make a list, smaller ones a fixed-length byte array."""
    read: bool = True
    """Training reads this column."""

    @property
    def value_bytes(self) -> int:
        import numpy as np  # settings are imported by every command, for which numpy would be slow

        return np.dtype(self.dtype).itemsize * self.size


@dataclass(frozen=True, kw_only=True)
class ParquetSpec:
    """Settings that only format `parquet` has."""

    columns: tuple[ParquetColumn, ...] = ()
    """Columns of the table; if empty, it has one, `data`, of `record_length_bytes`."""
    row_group_size: Annotated[int, at_least(1)] = 1024
    """Rows in each row group; row groups are read whole."""


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Settings of the dataset. Defaults are DLIO's where DLIO has the key."""

    data_folder: Annotated[str, Meta(min_length=1)] = "./data/"
    """Folder that holds `train/` and `valid/`."""
    source: Literal["generated", "folder"] = "generated"
    """`generated`: made from these settings; `folder`: your own files in `data_folder`, which are only read."""
    format: Annotated[str, Meta(min_length=1)] = "tfrecord"
    """Name of a module in `datagen.formats`, or the dotted name of your own module."""
    num_files_train: Annotated[int, at_least(0)] = 8
    """Files of the training set."""
    num_files_eval: Annotated[int, at_least(0)] = 0
    """Files of the validation set."""
    num_samples_per_file: Annotated[int, at_least(1)] = 1
    """Samples (records) in each file."""
    record_length_bytes: Annotated[float, at_least(1, MAX_RECORD_BYTES), BYTES] = 64 * 1024
    """Mean elements of one sample: bytes, unless `record_element_type` is wider; for images, bytes of the file."""
    record_length_bytes_stdev: Annotated[float, at_least(0, MAX_RECORD_BYTES), BYTES] = 0
    """Standard deviation of `record_length_bytes`, drawn for each file as DLIO does; 0: all samples have one size."""
    record_length_bytes_quantiles: Annotated[tuple[float, ...], BYTES] = ()
    """Quantiles of the sample size at equal steps of probability; `record_length_bytes` remains the mean."""
    record_length_bytes_resize: Annotated[int, at_least(0, MAX_RECORD_BYTES), BYTES] = 0
    """Bytes of each sample that a worker passes to the trainer, from its beginning; 0 passes the whole sample."""
    record_dims: tuple[Annotated[int, at_least(1)], ...] = ()
    """Shape of a record; for images: height, width, channels. Empty: a square made from `record_length_bytes`."""
    record_element_type: str = "uint8"
    """NumPy type of a record's elements. As in DLIO, the bytes of a record are its elements times the type's bytes."""
    num_subfolders_train: Annotated[int, at_least(0)] = 0
    """Sub-folders of `train/` over which its files are distributed; 0 or 1: all files are in `train/` itself."""
    num_subfolders_eval: Annotated[int, at_least(0)] = 0
    """Sub-folders of `valid/`, likewise."""
    file_prefix: Annotated[str, Meta(pattern=r"^[^/.][^/]*\Z")] = "img"
    """Prefix of file names, as in `img_3_of_8.npz`: without / and not starting with a dot."""
    compression: Compression = "none"
    """Compression of the records; each format supports some of these."""
    compression_level: Annotated[int, Meta(ge=1, le=9)] = 4
    """Level of gzip, zip and zstd, 1 (fastest) to 9 (smallest); ignored for snappy."""
    compressibility: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of each block that a compressor can remove, 0 (random) to below 1 (nearly constant)."""
    enable_chunking: bool = False
    """Store HDF5 datasets in chunks; each chunk has one sample, or `chunk_size` bytes of it."""
    chunk_size: Annotated[int, at_least(0, MAX_RECORD_BYTES), BYTES] = 0
    """Bytes of a chunk where `enable_chunking` is set; chunks are equally long along each axis."""
    hdf5: Hdf5 = Hdf5()
    """Layout of HDF5 files."""
    parquet: ParquetSpec = ParquetSpec()
    """Columns and row groups of Parquet files."""
    seed: Annotated[int, at_least(0, 2**63 - 1)] = 0
    """Seed of the contents: datasets with different seeds have no 4096-byte block in common."""

    @property
    def sizes_vary(self) -> bool:
        return self.record_length_bytes_stdev > 0 or bool(self.record_length_bytes_quantiles)

    @property
    def element_bytes(self) -> int:
        import numpy as np  # settings are imported by every command, for which numpy would be slow

        return np.dtype(self.record_element_type).itemsize

    def check(self) -> list[str]:
        """Return a message for each problem of these settings: the key, its value and the expected value."""
        return list(problems(self, "dataset"))

    def problems(self, where: str) -> Iterator[str]:
        """Yield contradictions between settings of section `where`; `settings.problems` checks each setting alone."""
        quantile_sizes = self.record_length_bytes_quantiles
        size_settings = ("record_dims", "record_length_bytes_stdev", "record_length_bytes_quantiles")
        size_keys = [f"{where}.{name}" for name in size_settings if getattr(self, name)]
        if quantile_sizes and self.parquet.columns:
            size_keys.append(f"{where}.parquet.columns")
        if len(size_keys) > 1:
            yield f"{' and '.join(size_keys)} are given, and each sets the size of records: leave all but one out"
        if quantile_sizes:
            key = f"{where}.record_length_bytes_quantiles"
            yield from quantiles.problems(quantile_sizes, self.record_length_bytes, key, f"{where}.record_length_bytes")
            if max(quantile_sizes) > MAX_RECORD_BYTES:
                yield f"{key} goes up to {max(quantile_sizes):g}: wanted at most {MAX_RECORD_BYTES:g}"
        if not _is_number_type(self.record_element_type):
            actual = f"{where}.record_element_type is {self.record_element_type!r}"
            yield f"{actual}: wanted the name of a NumPy number type, such as uint8 or float32"
            return  # the other checks need the bytes of an element
        elements = math.prod(self.record_dims) if self.record_dims else self.record_length_bytes
        samples = (self.num_files_train + self.num_files_eval) * self.num_samples_per_file
        with contextlib.suppress(OverflowError):  # numbers so large are out of range, which has a message already
            total_bytes = samples * elements * self.element_bytes
            if total_bytes > MAX_DATASET_BYTES:
                product = f"{where}: files, samples per file and record size multiply to {total_bytes:.3g} bytes"
                yield f"{product}: wanted at most {MAX_DATASET_BYTES:.3g}"
        from datagen import registry  # here, because formats import this module

        # An unknown format is not reported here: opening it raises an error that lists the known ones
        if self.format in registry.names("datagen.formats"):
            yield from registry.find("datagen.formats", self.format, "Format")().unfit(self)


def _is_number_type(name: str) -> bool:
    import numpy as np

    try:
        return np.dtype(name).kind in "iufc"  # signed and unsigned integers, floats and complex numbers
    except (TypeError, ValueError, SyntaxError):
        return False
