"""How many samples each of a user's files holds: by its footer, its record headers, or its length."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.errors import DatasetError, DlemuError
from datagen.file_choice import FLAT, RAW
from datagen.formats import format_base as base
from datagen.formats.tfrecord import Format as Tfrecord
from datagen.formats.webdataset import Format as Webdataset
from datagen.layout import Layout
from datagen.registry import library
from datagen.spec import DatasetSpec
from datagen.storage.posix import cache_restored
from datagen.storage.storage_base import StorageBase
from datagen.thread_pool import of_each

COUNTED_FILES = 256  # maximum files whose samples are counted, evenly spaced among all files
OR_RAW = "or set dataset.format=raw to read each file whole, as one sample"
HOW_TO_CUT = "set dataset.format=mmap_indexed_binary and dataset.record_length_bytes to the stored bytes of a sample"

Sizes = NDArray[np.int64]  # bytes of each file
Find = Callable[[BinaryIO, base.Version], int]  # finds a number in an open file, such as the number of its samples


class Readable(NamedTuple):
    """Files that can be read, all with the same number of samples."""

    layout: Layout
    sizes: Sizes  # bytes that are read of each file
    notes: tuple[str, ...] = ()  # for the user: which samples are not read


def readable_files(format_name: str, layout: Layout, sizes: Sizes, spec: DatasetSpec, storage: StorageBase) -> Readable:
    """Return the files with their number of samples. Raises DatasetError: they are damaged, or of another format."""
    if format_name in FLAT:
        return _cut_files(layout, sizes, max(1, int(spec.record_length_bytes)))
    if format_name in COUNTERS:
        return _counted_files(format_name, layout, sizes, storage)
    if format_name == RAW and spec.format != RAW:
        which = f"each .{layout.extension} file" if layout.extension else "each file"
        return Readable(layout, sizes, (f"{which} is read whole, as one sample: if it holds many, {HOW_TO_CUT}",))
    return Readable(layout, sizes)


def problem_reading(format_name: str, path: str, storage: StorageBase) -> str:
    """Return why a format can't read a file, such as a structure that it does not know; '' if it can.

    Files of several samples are read when their samples are counted.
    """
    if format_name in (RAW, *FLAT, *COUNTERS) or registry.is_dotted(format_name):
        return ""
    file_format = base.format_named(format_name)
    file_format.own_files = True
    try:
        with base.opened_file(file_format, path, storage, 1) as opened:
            opened.sample(0)
    except DlemuError as error:
        return base.what_is_damaged(error)
    return ""


def _cut_files(layout: Layout, sizes: Sizes, record_bytes: int) -> Readable:
    """Cut each file into records of one length; what is left at its end belongs to no sample."""
    counts = sizes // record_bytes
    samples = _best_count(counts)
    if samples < 1:
        raise DatasetError(
            f"{layout.folder}: no file has the {record_bytes} bytes of a sample: "
            "set dataset.record_length_bytes to those of one sample"
        )
    files = np.flatnonzero(counts >= samples)
    used_bytes = samples * record_bytes
    layout = replace(subset(layout, files), num_samples_per_file=samples, used_bytes=used_bytes)
    note = f"each file is cut into {samples:,} samples of {record_bytes:,} bytes (dataset.record_length_bytes)"
    return Readable(layout, np.minimum(sizes[files], used_bytes), (note,))


def _counted_files(format_name: str, layout: Layout, sizes: Sizes, storage: StorageBase) -> Readable:
    """Count the samples of each file or, if there are many files, of COUNTED_FILES among them."""
    counts = np.array(measure(COUNTERS[format_name], layout, sizes, storage))
    is_sampled = len(counts) < layout.num_files
    samples = int(counts.min()) if is_sampled else _best_count(counts)
    if samples < 1:
        empty = layout.path(_opened_files(layout)[int(counts.argmin())])
        raise DatasetError(f"{empty} holds no samples: move all such files away")
    if is_sampled:
        note = f"{samples} samples of each file are read: the fewest of {len(counts)} files that were counted"
        return Readable(replace(layout, num_samples_per_file=samples), sizes, (note,))
    files = np.flatnonzero(counts >= samples)
    layout = replace(subset(layout, files), num_samples_per_file=samples)
    total = int(counts.sum())
    if layout.num_samples == total:
        return Readable(layout, sizes[files])
    note = f"{layout.num_samples:,} of {total:,} samples are read: {samples} of each of {len(files)} files"
    return Readable(layout, sizes[files], (note,))


def _best_count(counts: NDArray[np.int64]) -> int:
    """Return the samples to read of each file so that there are most in all: files with fewer samples are left out."""
    return max({int(count) for count in counts}, key=lambda samples: samples * int((counts >= samples).sum()))


def subset(layout: Layout, files: NDArray[np.intp]) -> Layout:
    """Return the layout of some of the files of a layout that lists their names."""
    assert layout.names is not None
    names = tuple(layout.names[file] for file in files)
    return replace(layout, names=names, num_files=len(names))


def _opened_files(layout: Layout) -> list[int]:
    """Return which files are opened to learn their structure: at most COUNTED_FILES, evenly spaced."""
    step = max(1, layout.num_files / COUNTED_FILES)
    return sorted({int(number * step) for number in range(min(layout.num_files, COUNTED_FILES))})


def measure(find: Find, layout: Layout, sizes: Sizes, storage: StorageBase) -> list[int]:
    """Return what `find` finds in at most COUNTED_FILES files.

    Raises DatasetError: a file is damaged, compressed or of another format.
    """

    def number_in(file: int) -> int:
        path = layout.path(file)
        local = storage.local_path(path)
        version = base.version_of(path if local is None else local, int(sizes[file]))
        try:
            with cache_restored([local] if local else []), _opened(path, storage) as opened:
                return find(opened, version)
        except (OSError, ValueError, base.DamagedError) as error:
            raise DatasetError(
                f"{path}: its samples can't be counted ({error}): restore it, decompress it if it is compressed, "
                f"or move it away, {OR_RAW}"
            ) from error

    return of_each(_opened_files(layout), number_in)


@contextlib.contextmanager
def _opened(path: str, storage: StorageBase) -> Iterator[BinaryIO]:
    """Open a file; the storage is read in pieces of HEADERS_AT_ONCE_BYTES."""
    with contextlib.closing(base.Source(path, storage.open_received(path))) as source:
        yield io.BufferedReader(base.SourceStream(source), base.HEADERS_AT_ONCE_BYTES)


def group_rows(file: BinaryIO, _: base.Version | None = None) -> int:
    """Return the mean rows of a row group in a Parquet file, without the last one, which may have fewer."""
    metadata = library("pyarrow.parquet", "parquet").read_metadata(file)
    rows = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    full_groups = rows[:-1] or rows
    return max(1, sum(full_groups) // max(1, len(full_groups)))


COUNTERS: dict[str, Find] = {
    "parquet": lambda file, _: int(library("pyarrow.parquet", "parquet").read_metadata(file).num_rows),
    "webdataset": lambda file, version: len(Webdataset().known_offsets(file, version)) - 1,
    "tfrecord": lambda file, version: len(Tfrecord().known_offsets(file, version)) - 1,
}
"""Functions that count the samples of a file by its footer or record headers, for formats with several a file."""
