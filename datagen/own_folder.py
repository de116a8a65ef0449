"""A folder of a user's own files as a dataset: what is there, of which format, how large, how many samples.

It is only looked at: nothing is written there, and no manifest is requested or read. Files may lie flat, in folders of
classes or deeper; hidden files are skipped, as are those that are not of the most common format.
"""

from __future__ import annotations

import os
import struct
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.errors import DatasetError, DlemuError, UserError
from datagen.extras import library
from datagen.formats.format_base import FORMATS, Format
from datagen.layout import Layout
from datagen.regular import open_regular
from datagen.scan import FORMAT_OF_ENDING, SHOWN_NAMES, has_ending, sizes_on_disk
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from datagen.unread import unread

RAW = "raw"
DEEPEST = 16
"""Folders below each other; more are a loop of links."""
COUNTED_FILES = 256
"""Files whose samples are counted; of a folder with more, as many that lie evenly among them."""
QUANTILES = 65  # steps of 1.6 %: each is a number in config.yaml
FLAT = ("indexed_binary", "mmap_indexed_binary")
"""Formats without framing, such as tokens: a user's files are cut into records of `record_length_bytes`."""
TOKEN_FILE_BYTES = 4 << 20  # .bin files as large on average are more likely tokens than a sample each
FLAT_WITHOUT = (".idx", ".json", ".txt", ".pkl", ".model")
"""Extensions of companion files (indexes, vocabularies), which are no data."""
_TRAIN = "train"
_FRAME = struct.Struct("<Q")
_FRAMING_BYTES = 16
"""Of a record of tfrecord: its length, and two sums (tensorflow/core/lib/io/record_writer.h)."""


@dataclass(frozen=True)
class OwnFolder:
    """What is in a folder of a user's own."""

    spec: DatasetSpec
    """What was requested, completed by what is there."""
    layout: Layout
    sizes: NDArray[np.int64]
    """Bytes of each file."""
    notes: tuple[str, ...]


def look(spec: DatasetSpec, storage: StorageSpec) -> OwnFolder:
    """Look at the folder `spec.data_folder`; raises DatasetError, UserError where there is nothing to read."""
    opened = open_storage(storage.buffered)
    try:
        return _look(spec, opened)
    except OSError as error:
        raise DatasetError(
            f"{error.filename or spec.data_folder}: {error.strerror or error}: the folder can't be scanned; check "
            "permissions and the file system, or move away what is not a file"
        ) from error


def _look(spec: DatasetSpec, storage: StorageBase) -> OwnFolder:
    folder = spec.data_folder.rstrip("/") or "/"
    if not storage.is_folder(folder):
        raise DatasetError(f"{folder} is not a folder: set dataset.data_folder to the folder of your files")
    if storage.is_folder(f"{folder}/{_TRAIN}"):
        folder = f"{folder}/{_TRAIN}"
    listed = sorted(_files_below(storage, folder))
    if not listed:
        raise DatasetError(f"{folder} holds no files: set dataset.data_folder to the folder of your files")
    name, names = spec.format, _flat_files(spec.format, listed)
    if not names:
        name, names = _of_one_format(spec.format, listed)
    notes = []
    if len(names) < len(listed):
        others = Counter(os.path.splitext(other)[1] or "no ending" for other in set(listed) - set(names))
        number = len(listed) - len(names)
        kinds = ", ".join(f"{ending} ({count})" for ending, count in others.most_common(SHOWN_NAMES))
        notes.append(f"{number} file{'s are' if number != 1 else ' is'} of other kinds and not read: {kinds}")
    layout = Layout(
        folder=folder,
        split="train",
        num_files=len(names),
        num_samples_per_file=1,
        extension=os.path.splitext(names[0])[1].lstrip("."),
        names=tuple(names),
    )
    sizes = sizes_on_disk(layout, storage)
    if empty := int((sizes == 0).sum()):
        full = np.flatnonzero(sizes)
        layout, sizes = _some(layout, full), sizes[full]
        notes.append(f"{empty} empty file{'s are' if empty != 1 else ' is'} not read")
        if not len(full):
            raise DatasetError(f"{folder} holds only empty files: set dataset.data_folder to the folder of your files")
    name, layout, sizes, more = _with_samples(name, layout, sizes, spec, storage)
    if name == RAW and layout.extension == "bin" and sizes.mean() >= TOKEN_FILE_BYTES:
        notes.append(
            "each .bin file is read whole, as one sample: if they hold tokens, set dataset.format=mmap_indexed_binary "
            "and dataset.record_length_bytes to the bytes of a sample"
        )
    seen = (
        f"the dataset is your own: {layout.num_files:,} {name} file{'s' * (layout.num_files != 1)}, "
        f"{int(sizes.sum()) / 1e9:,.3g} GB, in {folder}, which is only read"
    )
    samples = layout.num_samples_per_file
    per_sample = sizes / samples
    mean = float(per_sample.mean())
    varies = len(sizes) > 1 and int(sizes.min()) < int(sizes.max()) and not spec.parquet.columns
    completed = replace(
        spec,
        format=name,
        num_files_train=layout.num_files,
        num_files_eval=0,
        num_samples_per_file=samples,
        num_subfolders_train=0,
        record_length_bytes=max(mean, 1.0),
        record_length_bytes_stdev=0,
        record_length_bytes_quantiles=_quantiles(per_sample) if varies else (),
        record_dims=(),
        record_element_type="uint8",
        compression="none",
        enable_chunking=False,
    )
    return OwnFolder(completed, layout, sizes, (seen, *notes, *more))


def _quantiles(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(np.quantile(values, np.linspace(0, 1, QUANTILES)).tolist())


def _some(layout: Layout, files: Sequence[int] | NDArray[np.intp]) -> Layout:
    assert layout.names is not None
    names = tuple(layout.names[file] for file in files)
    return replace(layout, names=names, num_files=len(names))


def _files_below(storage: StorageBase, folder: str, below: str = "", depth: int = 0) -> list[str]:
    """Return the paths below a folder of all files whose names, and whose folders' names, are not hidden."""
    if depth > DEEPEST:
        raise UserError(f"{folder}/{below} lies more than {DEEPEST} folders deep: remove the link that leads back up")
    found: list[str] = []
    folders: list[str] = []
    with storage.entries(f"{folder}/{below}".rstrip("/")) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                (folders if entry.is_dir() else found).append(f"{below}{entry.name}")
    for name in folders:
        found += _files_below(storage, folder, f"{name}/", depth + 1)
    return found


def _of_one_format(asked: str, listed: list[str]) -> tuple[str, list[str]]:
    """Return the format, and its files: the one requested where there are any, else the one of most files.

    Of `raw` those with the most common extension. A label may lie beside each picture, so unknown ones count half.
    """
    if mine := [name for name in listed if asked != RAW and format_of(name) == asked]:
        return asked, mine
    endings = Counter(os.path.splitext(name)[1].lower() for name in listed if asked == RAW or format_of(name) == RAW)
    ending, raw = endings.most_common(1)[0] if endings else ("", 0)
    counts = Counter(format_of(name) for name in listed if asked != RAW and format_of(name) != RAW)
    name, known = counts.most_common(1)[0] if counts else (RAW, 0)
    if known >= raw / 2 and known:
        return name, [each for each in listed if format_of(each) == name]
    return RAW, [each for each in listed if os.path.splitext(each)[1].lower() == ending]


def _flat_files(asked: str, listed: list[str]) -> list[str]:
    """Return the files of records without structure, as of tokens; no name shows it, so such a format must be given."""
    endings = Counter(os.path.splitext(name)[1].lower() for name in listed)
    for ending in FLAT_WITHOUT:
        endings.pop(ending, None)
    if asked not in FLAT or not endings:
        return []
    most = f".{asked}" if f".{asked}" in endings else endings.most_common(1)[0][0]
    return [name for name in listed if os.path.splitext(name)[1].lower() == most]


def format_of(name: str) -> str:
    """Return the format that a file's name says; `raw` for one that dlemu does not know."""
    ending = os.path.splitext(name)[1].lower().lstrip(".")
    known = FORMAT_OF_ENDING.get(ending, ending)
    if known in registry.names(FORMATS):
        return known
    return next((each for each in ("tfrecord",) if f".{each}" in name or has_ending(name, each)), RAW)


def _with_samples(
    name: str, layout: Layout, sizes: NDArray[np.int64], spec: DatasetSpec, storage: StorageBase
) -> tuple[str, Layout, NDArray[np.int64], list[str]]:
    """Return the format by which the files can be read, those that are, and how many samples of each."""
    if name in FLAT:
        return _cut(name, layout, sizes, spec)
    count = COUNTERS.get(name)
    local = storage.local_path(layout.path(0))
    if count is None or local is None:
        if local is not None and name != RAW and not _can_read(name, layout, storage):
            note = f"{name} files of this structure are read whole, as bytes: each is one sample"
            return RAW, layout, sizes, [note]
        samples = spec.num_samples_per_file if count is not None else 1
        return name, replace(layout, num_samples_per_file=samples), sizes, []
    step = max(1, layout.num_files / COUNTED_FILES)
    looked = sorted({int(place * step) for place in range(min(layout.num_files, COUNTED_FILES))})
    counts = np.array([_counted(count, str(storage.local_path(layout.path(file)))) for file in looked])
    if len(looked) < layout.num_files:
        samples = int(counts.min())
        notes = [f"{samples} samples of each file are read: the fewest of {len(looked)} files that were counted"]
        return name, replace(layout, num_samples_per_file=samples), sizes, notes
    # Each file gives as many; files that have fewer are left out where that leaves more samples in all.
    samples = max({int(each) for each in counts}, key=lambda each: each * int((counts >= each).sum()))
    if samples < 1:
        raise DatasetError(f"{layout.folder}: its {name} files hold no samples")
    kept = np.flatnonzero(counts >= samples)
    notes = []
    if int(counts.sum()) > samples * len(kept):
        notes.append(
            f"{samples * len(kept):,} of {int(counts.sum()):,} samples are read: {samples} of each of {len(kept)} files"
        )
    return name, replace(_some(layout, kept), num_samples_per_file=samples), sizes[kept], notes


def _cut(
    name: str, layout: Layout, sizes: NDArray[np.int64], spec: DatasetSpec
) -> tuple[str, Layout, NDArray[np.int64], list[str]]:
    """Cut files into samples of the length that is requested, of each file as many."""
    length = max(1, int(spec.record_length_bytes))
    counts = sizes // length
    samples = max(map(int, counts), key=lambda each: each * int((counts >= each).sum()))
    if samples < 1:
        raise DatasetError(
            f"{layout.folder}: no file has the {length} bytes of a sample: set dataset.record_length_bytes to what one "
            "sample reads from a file"
        )
    kept = np.flatnonzero(counts >= samples)
    cut = replace(_some(layout, kept), num_samples_per_file=samples, used_bytes=samples * length)
    note = f"each file is cut into {samples:,} samples of {length:,} bytes (dataset.record_length_bytes)"
    return name, cut, np.minimum(sizes[kept], samples * length), [note]


def _can_read(name: str, layout: Layout, storage: StorageBase) -> bool:
    """Return whether dlemu's reader of the format understands the first and the last file."""
    file_format: Format = registry.find(FORMATS, name, "Format")()
    try:
        for file in {0, layout.num_files - 1}:
            file_format.load(str(storage.local_path(layout.path(file))), 0, 1)
    except (DlemuError, ValueError, LookupError):
        return False
    return True


def _counted(count: Callable[[str], int], path: str) -> int:
    try:
        with unread([path]):
            return count(path)
    except (OSError, ValueError, tarfile.TarError) as error:
        raise DatasetError(f"{path}: its samples can't be counted ({error}); move it away, or restore it") from error


def _rows(path: str) -> int:
    parquet: Any = library("pyarrow.parquet", "parquet")
    with os.fdopen(open_regular(path), "rb") as file:
        return int(parquet.read_metadata(file).num_rows)


def _members(path: str) -> int:
    """Count the samples of a tar of WebDataset: names that are alike up to the first dot of their last part."""
    with os.fdopen(open_regular(path), "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        names = (member.name.rpartition("/") for member in tar if member.isfile())
        return len({(folder, base.partition(".")[0]) for folder, _, base in names if not base.startswith(".")})


def _records(path: str) -> int:
    descriptor = open_regular(path)
    try:
        size_bytes, offset, records = os.fstat(descriptor).st_size, 0, 0
        while offset < size_bytes:
            head = os.pread(descriptor, _FRAME.size, offset)
            if len(head) < _FRAME.size:
                raise ValueError(f"a record that ends at byte {offset + len(head)}")
            offset += _FRAMING_BYTES + _FRAME.unpack(head)[0]
            records += 1
        if offset != size_bytes:
            raise ValueError("it is not a tfrecord file, or is truncated")
        return records
    finally:
        os.close(descriptor)


COUNTERS: dict[str, Callable[[str], int]] = {"parquet": _rows, "webdataset": _members, "tfrecord": _records}
"""Format of many samples a file -> the function that counts them, by the file's index or its records' headers."""
