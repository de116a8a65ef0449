"""A folder of the user's own files as a dataset: detects their format, sizes and number of samples.

The folder is never written to, and no manifest is needed. Files may be in the folder itself, in one folder for each
class, or deeper; hidden files are skipped, and files of other kinds and of other splits are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datagen import sample_counts
from datagen.errors import DatasetError, UserError
from datagen.file_choice import FLAT, MIN_SHARE_OF_KIND, RAW, choose_files, extension_of, kind_of
from datagen.layout import Layout
from datagen.sample_counts import COUNTERS, HOW_TO_CUT, OR_RAW, Readable, group_rows
from datagen.scan import sizes_on_disk
from datagen.spec import DatasetSpec
from datagen.storage.posix import cache_restored
from datagen.storage.storage_base import Listed, StorageBase, StorageSpec, open_storage

__all__ = ["COUNTERS", "FLAT", "MIN_SHARE_OF_KIND", "RAW", "cache_restored", "group_rows", "kind_of"]

MAX_DEPTH = 16  # maximum nesting of folders; deeper nesting is taken for a loop of links


@dataclass(frozen=True)
class UserFolder:
    """What was detected in a folder of the user's own files."""

    spec: DatasetSpec  # the settings requested, completed by those detected
    layout: Layout
    sizes: NDArray[np.int64]  # bytes of each file
    notes: tuple[str, ...]


def inspect_own_folder(spec: DatasetSpec, storage: StorageSpec) -> UserFolder:
    """Inspect the folder `spec.data_folder`; raises DatasetError, UserError if there is nothing to read.

    Without `spec.format` the names of the files decide on it; with it, files that it can't read are refused.
    """
    try:
        return _inspect(spec, open_storage(storage.buffered))
    except OSError as error:
        raise DatasetError(
            f"{error.filename or spec.data_folder}: {error.strerror or error}: the folder can't be scanned; check "
            "permissions and the file system, or move away what is not a file"
        ) from error


def _inspect(spec: DatasetSpec, storage: StorageBase) -> UserFolder:
    """Do as `inspect_own_folder`; raises OSError too."""
    folder = spec.data_folder.rstrip("/") or "/"
    if not storage.is_folder(folder):
        raise DatasetError(f"{folder} is not a folder: set dataset.data_folder to the folder of your files")
    listed = _files_below(storage, folder)
    if not listed:
        raise DatasetError(f"{folder} holds no files: set dataset.data_folder to the folder of your files")
    format_name, paths, notes = choose_files(spec, sorted(listed))
    if spec.format not in ("", format_name):
        raise DatasetError(
            f"dataset.format={spec.format}, and {folder}/{paths[0]} is named as {format_name}: "
            f"leave dataset.format out, {OR_RAW}"
        )
    layout = Layout(
        folder=folder,
        split="train",
        num_files=len(paths),
        num_samples_per_file=1,
        extension=extension_of(paths[0]).lstrip("."),
        names=tuple(paths),
    )
    stated = [listed[path] for path in paths]
    # Object stores list sizes with the names; a request for each of a million objects would take minutes
    sizes = sizes_on_disk(layout, storage) if None in stated else np.array(stated, np.int64)
    filled = np.flatnonzero(sizes)
    if not filled.size:
        raise DatasetError(f"{folder} holds only empty files: set dataset.data_folder to the folder of your files")
    if filled.size < sizes.size:
        notes.append(f"{sizes.size - filled.size} of the files are empty and not read")
    layout = sample_counts.subset(layout, filled)
    if problem := sample_counts.problem_reading(format_name, layout.path(0), storage):
        if kind_of(layout.name(0)) != format_name:
            raise DatasetError(f"dataset.format={format_name}: {problem}: leave dataset.format out, {OR_RAW}")
        own = _inspect(replace(spec, format=RAW), storage)
        note = f"{problem}: each file is read whole, as one sample; if it holds many, {HOW_TO_CUT}"
        return replace(own, notes=(*own.notes, note))
    files = sample_counts.readable_files(format_name, layout, sizes[filled], spec, storage)
    total_bytes = int(files.sizes.sum())
    shown_bytes = f"{total_bytes / 1e9:,.3g} GB" if total_bytes >= 10**7 else f"{total_bytes:,} bytes"
    plural = "s" if files.layout.num_files != 1 else ""
    summary = (
        f"the dataset is your own: {files.layout.num_files:,} {format_name} file{plural}, {shown_bytes}, "
        f"in {folder}, which is only read"
    )
    completed = _completed(replace(spec, format=format_name), files, storage)
    return UserFolder(completed, files.layout, files.sizes, (summary, *notes, *files.notes))


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


def _completed(spec: DatasetSpec, files: Readable, storage: StorageBase) -> DatasetSpec:
    """Return the settings that describe the files."""
    parquet = spec.parquet
    if spec.format == "parquet":  # the memory for a batch follows from the rows of a row group
        rows = sample_counts.measure(group_rows, files.layout, files.sizes, storage)
        parquet = replace(parquet, row_group_size=min(rows))
    sample_sizes = files.sizes / files.layout.num_samples_per_file
    quantiles: tuple[float, ...] = ()
    if sample_sizes.min() < sample_sizes.max() and not spec.parquet.columns:
        # 65 numbers in config.yaml: steps of 1.6 %
        quantiles = tuple(np.quantile(sample_sizes, np.linspace(0, 1, 65)).tolist())
    return replace(
        spec,
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
