"""What a dataset is: a frozen value that crosses processes, and is written into the manifest beside the files.

Field names are DLIO's, so its users and its YAML are at home.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from datagen import quantiles
from datagen.ranges import BYTES, Range, at_least, out_of_range, problems
from datagen.strict import build, together

__all__ = ["BLOCK_BYTES", "Compression", "DatasetSpec", "Decode", "Hdf5", "Split", "build", "together"]

Split = Literal["train", "valid"]
Compression = Literal["none", "gzip", "zip", "snappy", "zstd"]
Decode = Literal["none", "full"]
EngineName = Literal["matched", "fast", "library"]

BLOCK_BYTES = 4096
"""Every block of this many payload bytes is unique and names its file and offset (`datagen.content`)."""
PICTURES = ("jpeg", "png", "tiff")
"""Formats whose records are pictures: their files have the bytes stated, whatever the shape of the picture."""
NUMBER_KINDS = "iufc"
"""Kinds of NumPy's types that records may have: integers with and without sign, floats and complex numbers."""


@dataclass(frozen=True, kw_only=True)
class Hdf5:
    """How HDF5 files are laid out."""

    chunk_dims: tuple[int, ...] = ()
    """Shape of a chunk, its first number counting samples; empty leaves the layout to the other settings."""
    num_dset_per_record: int = 1
    """Datasets that share a record, which is cut along the first of `record_dims`."""
    max_shape: tuple[int, ...] = ()
    """What a record's shape could grow to; it makes the datasets chunked."""


@dataclass(frozen=True, kw_only=True)
class ParquetColumn:
    """One column of a Parquet file."""

    name: str
    """The column's name."""
    dtype: Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"] = "float32"
    """Type of its numbers."""
    size: int = 1
    """Numbers in each value: several of 4 or 8 bytes are a list, of fewer bytes a byte array of fixed length."""
    read: bool = True
    """Training reads this column."""

    @property
    def value_bytes(self) -> int:
        """Return the bytes of a value."""
        import numpy as np  # settings are imported by every command, for which numpy would be slow

        return np.dtype(self.dtype).itemsize * self.size


@dataclass(frozen=True, kw_only=True)
class ParquetSpec:
    """What format `parquet` needs to know beside the rest."""

    columns: tuple[ParquetColumn, ...] = ()
    """The columns of a row; without any there is one, `data`, of `record_length_bytes`."""
    row_group_size: int = 1024
    """Rows of a row group, which is read whole."""


MOST_RECORD_BYTES, MOST_DATASET_BYTES = 1 << 50, 1 << 62
"""Far beyond any dataset, and below where offsets and sums in 64 bits end."""


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The dataset as requested. Defaults are DLIO's where DLIO has the key."""

    data_folder: str = "./data/"
    """Folder that holds `train/` and `valid/`."""
    source: Literal["generated", "folder"] = "generated"
    """`generated`: a dataset as these settings say. `folder`: your own files, whatever is in `data_folder`.

    Their format, number and sizes are determined from them; they are only read (docs/own-workload.md).
    """
    format: str = "tfrecord"
    """Name of a module in `datagen.formats`, or the dotted name of your own."""
    num_files_train: Annotated[int, at_least(0)] = 8
    """Files of the training set."""
    num_files_eval: Annotated[int, at_least(0)] = 0
    """Files of the validation set."""
    num_samples_per_file: Annotated[int, at_least(1)] = 1
    """Samples (records) in each file."""
    record_length_bytes: Annotated[float, at_least(1, MOST_RECORD_BYTES), BYTES] = 64 * 1024
    """Mean bytes of one sample, as elements of one byte; of an image those of its file."""
    record_length_bytes_stdev: Annotated[float, at_least(0, MOST_RECORD_BYTES), BYTES] = 0
    """Standard deviation of the samples' bytes, drawn as DLIO draws them; 0: all are alike."""
    record_length_bytes_quantiles: Annotated[tuple[float, ...], BYTES] = ()
    """The samples' bytes as quantiles at equal steps of probability, from the least to the largest.

    `record_length_bytes` is their mean, which stays. A file's size does not depend on how many there are.
    """
    record_length_bytes_resize: Annotated[int, at_least(0, MOST_RECORD_BYTES), BYTES] = 0
    """Bytes of each sample that a worker ships to the trainer, cropped from what it read; 0 ships the whole sample."""
    record_dims: tuple[int, ...] = ()
    """Shape of a record, of an image height, width, channels; empty makes two axes from `record_length_bytes`."""
    record_element_type: str = "uint8"
    """NumPy type of a record's numbers. A record has the bytes of its shape times those of the type (DLIO's rule)."""
    num_subfolders_train: Annotated[int, at_least(0)] = 0
    """Folders below `train/` over which its files are distributed; 0 or 1: all are in `train/` itself."""
    num_subfolders_eval: Annotated[int, at_least(0)] = 0
    """The same for `valid/`."""
    file_prefix: str = "img"
    """What file names begin with, as in `img_3_of_8.npz`."""
    compression: Compression = "none"
    """How the format compresses its records; each format supports some of these."""
    compression_level: Annotated[int, Range(1, 9, "1 to 9")] = 4
    """Level of gzip, zip and zstd, 1 (fast) to 9 (small); snappy has none."""
    compressibility: Annotated[float, Range(0, math.nextafter(1, 0), "0 or more, and below 1")] = 0.0
    """Share of each block that a compressor can remove, 0 (random) to below 1 (nearly constant)."""
    enable_chunking: bool = False
    """Cut HDF5 datasets into chunks of one sample and `chunk_size` bytes."""
    chunk_size: Annotated[int, at_least(0, MOST_RECORD_BYTES), BYTES] = 0
    """Bytes of a chunk, made square, where `enable_chunking` is set."""
    hdf5: Hdf5 = Hdf5()
    """How HDF5 files are laid out."""
    parquet: ParquetSpec = ParquetSpec()
    """Columns and row groups of Parquet files."""
    seed: Annotated[int, at_least(0, 2**63 - 1)] = 0
    """Two datasets with different seeds share no block."""

    @property
    def sizes_vary(self) -> bool:
        """Return whether samples differ in size."""
        return self.record_length_bytes_stdev > 0 or bool(self.record_length_bytes_quantiles)

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element of a record."""
        import numpy as np  # settings are imported by every command, for which numpy would be slow

        return np.dtype(self.record_element_type).itemsize

    @property
    def record_bytes(self) -> float:
        """Return the mean bytes of a record."""
        return math.prod(self.record_dims) if self.record_dims else self.record_length_bytes

    def check(self) -> list[str]:
        """Return the problems with this spec's values, each naming the key, what was seen and what is wanted.

        What its format can't do (a compression, several samples in a picture) is reported by that format.
        """
        return list(problems(self, "dataset"))

    def problems(self, where: str) -> Iterator[str]:
        """Name what is wrong besides single numbers; `where` is the key of this section."""
        if not any(out_of_range(self, where)):  # else the product may be more than a float holds
            total_bytes = (self.num_files_train + self.num_files_eval) * self.num_samples_per_file * self.record_bytes
            if total_bytes > MOST_DATASET_BYTES:
                seen = f"{where}.num_files_train, num_samples_per_file and record_length_bytes multiply to"
                yield f"{seen} {total_bytes:.3g} bytes: wanted at most {MOST_DATASET_BYTES:.3g}"
        yield from self._record_problems(where)
        yield from self._name_problems(where)
        yield from self._format_problems()

    def _record_problems(self, where: str) -> Iterator[str]:
        if any(axis < 1 for axis in self.record_dims):
            yield f"{where}.record_dims is {list(self.record_dims)}: wanted numbers of 1 or more"
        if self.record_dims and self.record_length_bytes_stdev:
            yield (
                f"{where}.record_dims and {where}.record_length_bytes_stdev are both given: records of one shape have "
                "one size; leave one of the two out"
            )
        if self.record_length_bytes_quantiles:
            yield from self._quantile_problems(where)
        if not _is_number_type(self.record_element_type):
            actual = f"{where}.record_element_type is {self.record_element_type!r}"
            yield f"{actual}: wanted the name of a NumPy number type, such as uint8 or float32"

    def _quantile_problems(self, where: str) -> Iterator[str]:
        key, sizes = f"{where}.record_length_bytes_quantiles", self.record_length_bytes_quantiles
        yield from quantiles.problems(sizes, self.record_length_bytes, key, f"{where}.record_length_bytes")
        if max(sizes) > MOST_RECORD_BYTES:
            yield f"{key} goes up to {max(sizes):g}: wanted at most {MOST_RECORD_BYTES:g}"
        others = {
            "record_dims": self.record_dims,
            "record_length_bytes_stdev": self.record_length_bytes_stdev,
            "parquet.columns": self.parquet.columns,
        }
        for other in (name for name, value in others.items() if value):
            yield f"{key} and {where}.{other} are both given, and both set the size of records: leave one out"

    def _format_problems(self) -> list[str]:
        if not _is_number_type(self.record_element_type):
            return []  # reported already, and formats compute with it
        # Formats build on this module, and an unknown one is reported when it is needed, with the list of those known.
        from datagen import registry

        if self.format not in registry.names("datagen.formats"):
            return []
        unfit: list[str] = registry.find("datagen.formats", self.format, "Format")().unfit(self)
        return unfit

    def _name_problems(self, where: str) -> Iterator[str]:
        if not self.data_folder:
            yield f"{where}.data_folder is empty: wanted a folder"
        if not self.format:
            yield f"{where}.format is empty: wanted the name of a format"
        if not self.file_prefix or "/" in self.file_prefix or self.file_prefix.startswith("."):
            wanted = "a plain file name part, without / and not starting with a dot"
            yield f"{where}.file_prefix is {self.file_prefix!r}: wanted {wanted}"


def _is_number_type(name: str) -> bool:
    import numpy as np

    try:
        return np.dtype(name).kind in NUMBER_KINDS
    except (TypeError, ValueError, SyntaxError):
        return False
