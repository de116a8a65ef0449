"""A folder of the user's own files as a dataset: detects their format, sizes and number of samples.

The folder is never written to, and no manifest is needed. Files may be in the folder itself, in one folder for each
class, or deeper; hidden files are skipped, and files of other kinds and of other splits are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datagen import sample_counts
from datagen.errors import DatasetError, UserError
from datagen.file_choice import FLAT, MIN_SHARE_OF_KIND, RAW, choose_files, extension_of, kind_of
from datagen.layout import Layout, has_own_length
from datagen.sample_counts import COUNTERS, HOW_TO_CUT, OR_RAW, Readable, group_rows
from datagen.scan import sizes_on_disk
from datagen.spec import DatasetSpec
from datagen.storage.posix import cache_restored
from datagen.storage.storage_base import Listed, StorageBase, StorageSpec, open_storage

__all__ = ["COUNTERS", "FLAT", "MIN_SHARE_OF_KIND", "RAW", "cache_restored", "group_rows", "kind_of"]

MAX_DEPTH = 16  # maximum nesting of folders; deeper nesting is taken for a loop of links
TOKEN_FILE_BYTES = 4 << 20  # .bin files of this mean size are more likely tokens than one sample each
_CONTAINERS = (
    *("tar", "tgz", "zip", "7z", "gz", "zst", "bz2", "xz", "json", "jsonl", "ndjson", "csv", "tsv", "txt", "parquet"),
    *("arrow", "feather", "avro", "orc", "tfrecord", "tfrecords", "array_record", "mds", "rec", "beton", "mdb", "lmdb"),
    *("db", "sqlite", "warc"),
)
"""Extensions, without that of a compression, of files that mostly hold many samples."""


@dataclass(frozen=True)
class UserFolder:
    """What was detected in a folder of the user's own files."""

    spec: DatasetSpec  # the settings requested, completed by those detected
    layout: Layout
    sizes: NDArray[np.int64]  # bytes of each file
    notes: tuple[str, ...]


def inspect_own_folder(
    spec: DatasetSpec, storage: StorageSpec, *, strict: bool = False, decodes: bool = False
) -> UserFolder:
    """Inspect the folder `spec.data_folder`; raises DatasetError, UserError if there is nothing to read.

    Files whose names don't show `spec.format` are read by that format if it can read them. If it can't, they are
    refused with `strict`; without, the format is detected. With `decodes`, Pillow must decode some of the pictures.
    """
    opened = open_storage(storage.buffered)
    try:
        found = _inspect(spec, opened, strict)
        if decodes and has_own_length(found.spec):
            sample_counts.measure(sample_counts.pixel_bytes, found.layout, found.sizes, opened)
        return found
    except OSError as error:
        raise DatasetError(
            f"{error.filename or spec.data_folder}: {error.strerror or error}: the folder can't be scanned; check "
            "permissions and the file system, or move away what is not a file"
        ) from error


def _inspect(spec: DatasetSpec, storage: StorageBase, strict: bool) -> UserFolder:
    """Do as `inspect_own_folder`; raises OSError too."""
    folder = spec.data_folder.rstrip("/") or "/"
    if not storage.is_folder(folder):
        raise DatasetError(f"{folder} is not a folder: set dataset.data_folder to the folder of your files")
    listed = _files_below(storage, folder)
    if not listed:
        raise DatasetError(f"{folder} holds no files: set dataset.data_folder to the folder of your files")
    choice = choose_files(spec, sorted(listed), lambda paths: _estimated_bytes(paths, listed, folder, storage))
    if strict and spec.format not in ("", choice.format_name):
        raise DatasetError(
            f"dataset.format={spec.format}, and {folder}/{choice.paths[0]} is named as {choice.format_name}: "
            f"leave dataset.format out, {OR_RAW}"
        )
    layout = Layout(
        folder=folder,
        split="train",
        num_files=len(choice.paths),
        num_samples_per_file=1,
        extension=extension_of(choice.paths[0]).lstrip("."),
        names=tuple(choice.paths),
    )
    stated = [listed[path] for path in choice.paths]
    # Object stores list sizes with the names; a request for each of a million objects would take minutes
    sizes = sizes_on_disk(layout, storage) if None in stated else np.array(stated, np.int64)
    layout, sizes, notes = _without_empty_files(layout, sizes)
    try:
        files = sample_counts.readable_files(choice.format_name, layout, sizes, spec, storage)
    except DatasetError:
        if strict or choice.format_name in FLAT or kind_of(choice.paths[0]) == choice.format_name:
            raise
        return _inspect(replace(spec, format=""), storage, strict)  # detect the format instead
    notes += _many_samples_note(spec, files)
    total_bytes = int(files.sizes.sum())
    shown_bytes = f"{total_bytes / 1e9:,.3g} GB" if total_bytes >= 10**7 else f"{total_bytes:,} bytes"
    plural = "s" if files.layout.num_files != 1 else ""
    summary = (
        f"the dataset is your own: {files.layout.num_files:,} {files.format_name} file{plural}, {shown_bytes}, "
        f"in {folder}, which is only read"
    )
    notes = [summary, *choice.notes, *notes, *files.notes]
    return UserFolder(_completed(spec, files, storage), files.layout, files.sizes, tuple(notes))


def _files_below(storage: StorageBase, folder: str, below: str = "", depth: int = 0) -> dict[str, int | None]:
    """Return the path below a folder of each file that is not hidden or in a hidden folder, and the size if listed."""
    if depth > MAX_DEPTH:
        raise UserError(f"{folder}/{below} is more than {MAX_DEPTH} folders deep: remove the link that leads back up")
    sizes: dict[str, int | None] = {}
    subfolders: list[str] = []
    with storage.entries(f"{folder}/{below}".rstrip("/")) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                subfolders.append(f"{below}{entry.name}/")
            else:
                sizes[f"{below}{entry.name}"] = entry.size_bytes if isinstance(entry, Listed) else None
    for subfolder in subfolders:
        sizes |= _files_below(storage, folder, subfolder, depth + 1)
    return sizes


def _estimated_bytes(paths: list[str], listed: Mapping[str, int | None], folder: str, storage: StorageBase) -> float:
    """Return about how many bytes files have, by the sizes of COUNTED_FILES of them."""
    some = paths[:: -(-len(paths) // sample_counts.COUNTED_FILES)]
    sizes = [listed[path] for path in some]
    if None in sizes:
        sizes = list(storage.sizes(f"{folder}/{path}" for path in some))
    return len(paths) / len(some) * sum(size or 0 for size in sizes)


def _without_empty_files(layout: Layout, sizes: NDArray[np.int64]) -> tuple[Layout, NDArray[np.int64], list[str]]:
    """Return the layout and sizes of the files that are not empty, and a note on the empty files."""
    folder = layout.folder
    num_empty = int((sizes == 0).sum())
    if num_empty == layout.num_files:
        raise DatasetError(f"{folder} holds only empty files: set dataset.data_folder to the folder of your files")
    if not num_empty:
        return layout, sizes, []
    filled = np.flatnonzero(sizes)
    note = f"{num_empty} empty file{'s are' if num_empty != 1 else ' is'} not read"
    return sample_counts.subset(layout, filled), sizes[filled], [note]


def _many_samples_note(spec: DatasetSpec, files: Readable) -> list[str]:
    """Return advice for files that are read whole, as one sample, if their extension or size suggests many samples.

    Raises DatasetError for a database of LMDB, unless the user chose how to read it.
    """
    extension, _, compression = files.layout.extension.partition(".")
    if extension in ("mdb", "lmdb") and spec.format not in (RAW, files.format_name):
        raise DatasetError(
            f"{files.layout.path(0)} is a database of LMDB, of many samples: {HOW_TO_CUT}, or dataset.format=raw to "
            "read it whole"
        )
    are_tokens = extension in ("bin", "") and files.sizes.mean() >= TOKEN_FILE_BYTES
    if files.format_name != RAW or not (extension in _CONTAINERS or are_tokens):
        return []
    which = f"each .{files.layout.extension} file" if extension else "each file"
    note = f"{which} is read whole, as one sample: if they hold many, {HOW_TO_CUT}"
    if not extension:
        note += ", or dataset.format to the one that they are of, such as tfrecord"
    elif compression or extension == "tgz":
        note += ", or decompress tar and tfrecord files"
    return [note]


def _completed(spec: DatasetSpec, files: Readable, storage: StorageBase) -> DatasetSpec:
    """Return the settings that describe the files."""
    parquet = spec.parquet
    if files.format_name == "parquet":  # the memory for a batch follows from the rows of a row group
        rows = sample_counts.measure(group_rows, files.layout, files.sizes, storage)
        parquet = replace(parquet, row_group_size=min(rows))
    sample_sizes = files.sizes / files.layout.num_samples_per_file
    quantiles: tuple[float, ...] = ()
    if sample_sizes.min() < sample_sizes.max() and not spec.parquet.columns:
        # 65 numbers in config.yaml: steps of 1.6 %
        quantiles = tuple(np.quantile(sample_sizes, np.linspace(0, 1, 65)).tolist())
    return replace(
        spec,
        format=files.format_name,
        num_files_train=files.layout.num_files,
        num_files_eval=0,
        num_samples_per_file=files.layout.num_samples_per_file,
        num_subfolders_train=0,
        record_length_bytes=max(float(sample_sizes.mean()), 1.0),
        record_length_bytes_stdev=0,
        record_length_bytes_quantiles=quantiles,
        record_dims=(),
        record_element_type="uint8",
        compression="none",
        enable_chunking=False,
        parquet=parquet,
    )
