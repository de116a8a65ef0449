"""What a dataset is: a frozen value that crosses processes, and is written into the manifest beside the files.

Field names are DLIO's, so its users and its YAML are at home.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from datagen.strict import build, together

__all__ = ["BLOCK_BYTES", "Compression", "DatasetSpec", "Decode", "Hdf5", "Split", "build", "together"]

Split = Literal["train", "valid"]
Compression = Literal["none", "gzip", "zip", "snappy", "zstd"]
Decode = Literal["none", "full"]

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
    dtype: Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"] = "float32"
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


MOST_FILES, MOST_RECORD_BYTES, MOST_DATASET_BYTES = 10**9, 1 << 50, 1 << 62
"""Far beyond any dataset, and below where offsets and sums in 64 bits end."""


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The dataset as asked for. Defaults are DLIO's where DLIO has the key."""

    data_folder: str = "./data/"
    """Folder that holds `train/` and `valid/`."""
    format: str = "tfrecord"
    """Name of a module in `datagen.formats`, or the dotted name of your own."""
    num_files_train: int = 8
    num_files_eval: int = 0
    num_samples_per_file: int = 1
    record_length_bytes: float = 64 * 1024
    """Mean bytes of one sample, as elements of one byte; of a picture those of its file."""
    record_length_bytes_stdev: float = 0
    record_length_bytes_resize: int = 0
    """Bytes of each sample that a worker ships to the trainer, cropped from what it read; 0 ships the whole sample."""
    record_dims: tuple[int, ...] = ()
    """Shape of a record, of a picture height, width, channels; empty makes two axes from `record_length_bytes`."""
    record_element_type: str = "uint8"
    """NumPy's name of a record's type of number. A record has so many bytes times its shape (DLIO's law)."""
    num_subfolders_train: int = 0
    num_subfolders_eval: int = 0
    file_prefix: str = "img"
    compression: Compression = "none"
    compression_level: int = 4
    """Level of gzip, zip and zstd, 1 (fast) to 9 (small); snappy knows none."""
    compressibility: float = 0.0
    """Share of each block that a compressor can remove, 0 (random) to below 1 (nearly constant)."""
    enable_chunking: bool = False
    """Cut HDF5 datasets into chunks of one sample and `chunk_size` bytes."""
    chunk_size: int = 0
    """Bytes of a chunk, made square, where `enable_chunking` asks for them."""
    hdf5: Hdf5 = Hdf5()
    parquet: ParquetSpec = ParquetSpec()
    seed: int = 0
    """Two datasets with different seeds share no block."""

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
        limits = {
            "num_files_train": (0, MOST_FILES),
            "num_files_eval": (0, MOST_FILES),
            "num_samples_per_file": (1, MOST_FILES),
            "record_length_bytes": (1, MOST_RECORD_BYTES),
            "record_length_bytes_stdev": (0, MOST_RECORD_BYTES),
            "record_length_bytes_resize": (0, MOST_RECORD_BYTES),
            "num_subfolders_train": (0, MOST_FILES),
            "num_subfolders_eval": (0, MOST_FILES),
            "chunk_size": (0, MOST_RECORD_BYTES),
            "seed": (0, 2**63 - 1),
        }
        problems = [
            f"dataset.{key} is {getattr(self, key)}: wanted {least} or more, and at most {most}"
            for key, (least, most) in limits.items()
            if not least <= getattr(self, key) <= most
        ]
        if not problems:  # else the product may be more than a float holds
            total_bytes = (self.num_files_train + self.num_files_eval) * self.num_samples_per_file * self.record_bytes
            if total_bytes > MOST_DATASET_BYTES:
                seen = "dataset.num_files_train, num_samples_per_file and record_length_bytes make"
                problems.append(f"{seen} {total_bytes:.3g} bytes: wanted at most {MOST_DATASET_BYTES:.3g}")
        if not 0 <= self.compressibility < 1:
            problems.append(f"dataset.compressibility is {self.compressibility}: wanted 0 or more, and below 1")
        if not 1 <= self.compression_level <= 9:
            problems.append(f"dataset.compression_level is {self.compression_level}: wanted 1 to 9")
        return problems + self._check_records() + self._check_names() + self._check_format()

    def _check_records(self) -> list[str]:
        problems = []
        if any(axis < 1 for axis in self.record_dims):
            problems.append(f"dataset.record_dims is {list(self.record_dims)}: wanted numbers of 1 or more")
        if self.record_dims and self.record_length_bytes_stdev:
            problems.append(
                "dataset.record_dims and dataset.record_length_bytes_stdev are both given: records of one shape have "
                "one size; leave one of the two out"
            )
        if not _is_number_type(self.record_element_type):
            actual = f"dataset.record_element_type is {self.record_element_type!r}"
            problems.append(f"{actual}: wanted NumPy's name of a type of number, such as uint8 or float32")
        return problems

    def _check_format(self) -> list[str]:
        if not _is_number_type(self.record_element_type):
            return []  # reported already, and formats compute with it
        # Formats build on this module, and an unknown one is reported when it is needed, with the list of those known.
        from datagen import registry

        if self.format not in registry.names("datagen.formats"):
            return []
        problems: list[str] = registry.find("datagen.formats", self.format, "Format")().unfit(self)
        return problems

    def _check_names(self) -> list[str]:
        problems = []
        if not self.data_folder:
            problems.append("dataset.data_folder is empty: wanted a folder")
        if not self.format:
            problems.append("dataset.format is empty: wanted the name of a format")
        if not self.file_prefix or "/" in self.file_prefix or self.file_prefix.startswith("."):
            wanted = "a plain file name part, without / and not starting with a dot"
            problems.append(f"dataset.file_prefix is {self.file_prefix!r}: wanted {wanted}")
        return problems


def _is_number_type(name: str) -> bool:
    import numpy as np

    try:
        return np.dtype(name).kind in NUMBER_KINDS
    except (TypeError, ValueError, SyntaxError):
        return False
