"""A folder of the user's own files as a dataset: detects their format, sizes and number of samples.

The folder is never written to, and no manifest is needed. Files may be in the folder itself, in one folder for each
class, or deeper; hidden files are skipped, as are files that are not of the most common format.
"""

from __future__ import annotations

import io
import os
import struct
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.engines import FastEngine
from datagen.errors import DatasetError, DlemuError, UserError
from datagen.formats._hdf5_read import row_bytes
from datagen.formats._picture import pillow_pixels
from datagen.formats.format_base import FORMATS, format_named, what_is_damaged
from datagen.known_offsets import Version, learn_offsets, object_version, version_of
from datagen.layout import Layout
from datagen.registry import library
from datagen.regular import open_regular
from datagen.scan import FORMAT_OF_ENDING, SHOWN_NAMES, has_ending, sizes_on_disk
from datagen.spec import PICTURES, DatasetSpec
from datagen.storage.posix import cache_restored
from datagen.storage.storage_base import Listed, StorageBase, StorageSpec, StoredFile, open_storage
from datagen.thread_pool import of_each

RAW = "raw"
MAX_DEPTH = 16  # maximum nesting of folders; deeper nesting is taken for a loop of links
MIN_SHARE_OF_KIND = 0.5
"""Files of several kinds are all data if each kind has at least this share of the files of the most common one."""
COUNTED_FILES = 256  # maximum files whose samples are counted, evenly spaced among all files
_HEADERS_AT_ONCE_BYTES = 32 << 10
"""What a request to an object store brings: headers of several small members, in about the time that one takes."""
_SHOWN_IN_GB = 10**7  # smaller ones, such as 6e-09 GB, are shown in bytes
QUANTILES = 65  # steps of 1.6 %: each is a number in config.yaml
FLAT = ("indexed_binary", "mmap_indexed_binary")
"""Formats without framing, such as tokens: a user's files are cut into records of `record_length_bytes`."""
TOKEN_FILE_BYTES = 4 << 20  # .bin files of this mean size are more likely tokens than one sample each
COMPANION_EXTENSIONS = (".idx", ".json", ".txt", ".pkl", ".model")
"""Extensions of files beside those of FLAT formats that are not data, such as indexes and vocabularies."""
_TRAIN = "train"
_LENGTH = struct.Struct("<Q")
_FRAMING_BYTES = 16
"""Framing of a TFRecord record: its length and two checksums (tensorflow/core/lib/io/record_writer.h)."""


@dataclass(frozen=True)
class UserFolder:
    """What was detected in a folder of the user's own files."""

    spec: DatasetSpec  # the settings requested, completed by those detected
    layout: Layout
    sizes: NDArray[np.int64]  # bytes of each file
    notes: tuple[str, ...]


def inspect_own_folder(spec: DatasetSpec, storage: StorageSpec, *, decodes: bool = False) -> UserFolder:
    """Inspect the folder `spec.data_folder`; `decodes`: some of its pictures must be ones that Pillow decodes.

    Raises DatasetError, UserError if there is nothing to read.
    """
    opened = open_storage(storage.buffered)
    try:
        found = _inspect(spec, opened)
        if decodes and found.spec.format in PICTURES:
            _in_each(pixel_bytes, found.layout, found.sizes, _some_files(found.layout), opened)
        return found
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
    if storage.is_folder(f"{folder}/{_TRAIN}"):
        folder = f"{folder}/{_TRAIN}"
    stated_bytes = _files_below(storage, folder)
    listed = sorted(stated_bytes)
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
    stated = [stated_bytes[name] for name in names]
    # Listed with the names by object stores; a request for each of a million objects would take minutes
    sizes = sizes_on_disk(layout, storage) if None in stated else np.array(stated, np.int64)
    if empty := int((sizes == 0).sum()):
        full = np.flatnonzero(sizes)
        layout, sizes = _subset(layout, full), sizes[full]
        notes.append(f"{empty} empty file{'s are' if empty != 1 else ' is'} not read")
        if not len(full):
            raise DatasetError(f"{folder} holds only empty files: set dataset.data_folder to the folder of your files")
    name, layout, sizes, more = _with_samples(name, layout, sizes, spec, storage)
    if name == RAW and layout.extension == "bin" and sizes.mean() >= TOKEN_FILE_BYTES:
        notes.append(
            "each .bin file is read whole, as one sample: if they hold tokens, set dataset.format=mmap_indexed_binary "
            "and dataset.record_length_bytes to the bytes of a sample"
        )
    total = int(sizes.sum())
    seen = (
        f"the dataset is your own: {layout.num_files:,} {name} file{'s' * (layout.num_files != 1)}, "
        f"{f'{total / 1e9:,.3g} GB' if total >= _SHOWN_IN_GB else f'{total:,} bytes'}, in {folder}, which is only read"
    )
    samples = layout.num_samples_per_file
    per_sample = sizes / samples
    mean = float(per_sample.mean())
    varies = len(sizes) > 1 and int(sizes.min()) < int(sizes.max()) and not spec.parquet.columns
    shares, parquet = np.linspace(0, 1, QUANTILES), spec.parquet
    if name == "parquet":  # the room for a batch follows from the rows of a row group
        rows = _in_each(group_rows, layout, sizes, _some_files(layout), storage)
        parquet = replace(parquet, row_group_size=min(rows))
    completed = replace(
        spec,
        format=name,
        num_files_train=layout.num_files,
        num_files_eval=0,
        num_samples_per_file=samples,
        num_subfolders_train=0,
        record_length_bytes=max(mean, 1.0),
        record_length_bytes_stdev=0,
        record_length_bytes_quantiles=tuple(np.quantile(per_sample, shares).tolist()) if varies else (),
        record_dims=(),
        record_element_type="uint8",
        compression="none",
        enable_chunking=False,
        parquet=parquet,
    )
    return UserFolder(completed, layout, sizes, (seen, *notes, *more))


def _subset(layout: Layout, files: Sequence[int] | NDArray[np.intp]) -> Layout:
    assert layout.names is not None
    names = tuple(layout.names[file] for file in files)
    return replace(layout, names=names, num_files=len(names))


def _files_below(storage: StorageBase, folder: str, below: str = "", depth: int = 0) -> dict[str, int | None]:
    """Return the paths, below a folder, of all files that are not hidden or in a hidden folder, with stated sizes."""
    if depth > MAX_DEPTH:
        raise UserError(f"{folder}/{below} is more than {MAX_DEPTH} folders deep: remove the link that leads back up")
    found: dict[str, int | None] = {}
    folders: list[str] = []
    with storage.entries(f"{folder}/{below}".rstrip("/")) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(f"{below}{entry.name}")
            else:
                found[f"{below}{entry.name}"] = entry.size_bytes if isinstance(entry, Listed) else None
    for name in folders:
        found |= _files_below(storage, folder, f"{name}/", depth + 1)
    return found


def _of_one_format(requested: str, listed: list[str]) -> tuple[str, list[str]]:
    """Return a format and its files: the format requested if there are any such files, else the most common one.

    For `raw`, the files with the most common extension; if it is requested, also those of others that are at least half
    as common, such as the masks or texts of images. Files of unknown formats count half when formats are compared,
    because there may be a label file for each image.
    """
    if matching := [name for name in listed if requested != RAW and format_of(name) == requested]:
        return requested, matching
    unknown = (name for name in listed if requested == RAW or format_of(name) == RAW)
    endings = Counter(os.path.splitext(name)[1].lower() for name in unknown)
    ending, raw = endings.most_common(1)[0] if endings else ("", 0)
    if requested == RAW:
        often = {each for each, count in endings.items() if count >= MIN_SHARE_OF_KIND * raw}
        return RAW, [each for each in listed if os.path.splitext(each)[1].lower() in often]
    counts = Counter(format_of(name) for name in listed if format_of(name) != RAW)
    name, known = counts.most_common(1)[0] if counts else (RAW, 0)
    if known >= raw / 2 and known:
        return name, [each for each in listed if format_of(each) == name]
    return RAW, [each for each in listed if os.path.splitext(each)[1].lower() == ending]


def _flat_files(requested: str, listed: list[str]) -> list[str]:
    """Return the files of a FLAT format, if it is requested: file names don't show such formats."""
    endings = Counter(os.path.splitext(name)[1].lower() for name in listed)
    for ending in COMPANION_EXTENSIONS:
        endings.pop(ending, None)
    if requested not in FLAT or not endings:
        return []
    chosen = f".{requested}" if f".{requested}" in endings else endings.most_common(1)[0][0]
    return [name for name in listed if os.path.splitext(name)[1].lower() == chosen]


def format_of(name: str) -> str:
    """Return the format that a file's name indicates; `raw` if unknown."""
    ending = os.path.splitext(name)[1].lower().lstrip(".")
    known = FORMAT_OF_ENDING.get(ending, ending)
    if known in registry.names(FORMATS):
        return known
    return next((each for each in ("tfrecord",) if f".{each}" in name or has_ending(name, each)), RAW)


def _with_samples(
    name: str, layout: Layout, sizes: NDArray[np.int64], spec: DatasetSpec, storage: StorageBase
) -> tuple[str, Layout, NDArray[np.int64], list[str]]:
    """Return the format to read the files by, the layout and sizes of the files to be read, and notes for the user."""
    if name in FLAT:
        return _cut(name, layout, sizes, spec)
    count = COUNTERS.get(name)
    if count is None:
        if storage.local_path(layout.path(0)) is not None and name != RAW and not _can_read(name, layout, storage):
            note = f"{name} files of this structure are read whole, as bytes: each is one sample"
            if name == "hdf5" and (size := row_bytes(str(storage.local_path(layout.path(0))))):
                note += (
                    ". If each row of its largest dataset is one, cut it: dataset.format=indexed_binary "
                    f"dataset.record_length_bytes={size} (what h5py reads), or record your job: `dlemu record`"
                )
            return RAW, layout, sizes, [note]
        return name, layout, sizes, []
    counted = _some_files(layout)
    counts = np.array(_in_each(count, layout, sizes, counted, storage))
    if len(counted) < layout.num_files:
        samples = int(counts.min())
        notes = [f"{samples} samples of each file are read: the fewest of {len(counted)} files that were counted"]
        return name, replace(layout, num_samples_per_file=samples), sizes, notes
    # The same number of samples is read from each file. Files with fewer are skipped if that gives more samples in all.
    samples = max({int(each) for each in counts}, key=lambda each: each * int((counts >= each).sum()))
    if samples < 1:
        raise DatasetError(f"{layout.folder}: its {name} files hold no samples")
    kept = np.flatnonzero(counts >= samples)
    notes = []
    if int(counts.sum()) > samples * len(kept):
        notes.append(
            f"{samples * len(kept):,} of {int(counts.sum()):,} samples are read: {samples} of each of {len(kept)} files"
        )
    return name, replace(_subset(layout, kept), num_samples_per_file=samples), sizes[kept], notes


def _some_files(layout: Layout) -> list[int]:
    """Return which files are opened to learn their structure: at most COUNTED_FILES, evenly spaced."""
    step = max(1, layout.num_files / COUNTED_FILES)
    return sorted({int(place * step) for place in range(min(layout.num_files, COUNTED_FILES))})


Finder = Callable[[BinaryIO, Version], int]  # finds a number in an open file

_found: dict[tuple[Finder, Version], int] = {}
"""What was found in a file, until it changes: a command looks at a folder repeatedly."""


def _in_each(
    find: Finder, layout: Layout, sizes: NDArray[np.int64], files: Sequence[int], storage: StorageBase
) -> list[int]:
    """Return what `find` returns for each of some files; one that has not changed since is not opened again."""

    def found(path: str, size_bytes: int, own: StorageBase) -> int:
        local = own.local_path(path)
        version = object_version(path, size_bytes) if local is None else version_of(local, os.stat(local))
        if (find, version) not in _found:
            with cache_restored([local] if local else []), _opened(path, own) as file:
                _found[find, version] = find(file, version)
        return _found[find, version]

    def in_thread(own: StorageBase, numbers: Sequence[int]) -> Iterator[int]:
        for file in numbers:
            path = layout.path(file)
            try:
                yield found(path, int(sizes[file]), own)
            except (OSError, ValueError, SyntaxError, RuntimeError, tarfile.TarError) as error:
                verb = "decoded" if find is pixel_bytes else "counted"
                raise DatasetError(
                    f"{path}: its samples can't be {verb} ({error}); move it away, or restore it"
                ) from error

    return of_each(storage, files, in_thread)


def _opened(path: str, storage: StorageBase) -> BinaryIO:
    """Open a file to read its headers."""
    local = storage.local_path(path)
    if local is not None:
        return os.fdopen(open_regular(local), "rb")
    return io.BufferedReader(StoredFile(path, storage.open(path)), _HEADERS_AT_ONCE_BYTES)


def _cut(
    name: str, layout: Layout, sizes: NDArray[np.int64], spec: DatasetSpec
) -> tuple[str, Layout, NDArray[np.int64], list[str]]:
    """Cut files into samples of `record_length_bytes`, the same number from each file."""
    length = max(1, int(spec.record_length_bytes))
    counts = sizes // length
    samples = max(map(int, counts), key=lambda each: each * int((counts >= each).sum()))
    if samples < 1:
        raise DatasetError(
            f"{layout.folder}: no file has the {length} bytes of a sample: set dataset.record_length_bytes to "
            "the bytes of one sample"
        )
    kept = np.flatnonzero(counts >= samples)
    cut = replace(_subset(layout, kept), num_samples_per_file=samples, used_bytes=samples * length)
    note = f"each file is cut into {samples:,} samples of {length:,} bytes (dataset.record_length_bytes)"
    return name, cut, np.minimum(sizes[kept], samples * length), [note]


def _can_read(name: str, layout: Layout, storage: StorageBase) -> bool:
    """Return whether the format's module can read the first and the last file; raises DatasetError if only one of them.

    Files of a structure that is not dlemu's own are all alike: one that differs is damaged.
    """
    file_format = format_named(name)
    file_format.own_files = True
    engine = FastEngine(storage, file_format, 1, 0)
    paths = [layout.path(file) for file in sorted({0, layout.num_files - 1})]
    errors = {}
    for path in paths:
        try:
            engine.read(path, 0, memoryview(b""))
            engine.finish()
        except (DlemuError, ValueError, LookupError) as error:
            errors[path] = error
    if 0 < len(errors) < len(paths):
        ((damaged, problem),) = errors.items()
        (sound,) = set(paths) - {damaged}
        raise DatasetError(
            f"{damaged} can't be read as {name} ({what_is_damaged(problem)}), and {sound} can: restore it or move it "
            "away, or set dataset.format=raw to read each file whole"
        )
    return not errors


def pixel_bytes(file: BinaryIO, _: Version | None = None) -> int:
    """Return the bytes of a picture's pixels."""
    return len(pillow_pixels(memoryview(file.read())))


def count_rows(file: BinaryIO, _: Version | None = None) -> int:
    """Return the rows of a Parquet file, by its footer."""
    parquet: Any = library("pyarrow.parquet", "parquet")
    return int(parquet.read_metadata(file).num_rows)


def group_rows(file: BinaryIO, _: Version | None = None) -> int:
    """Return the mean rows of a row group, without the last, which has what is left."""
    parquet: Any = library("pyarrow.parquet", "parquet")
    metadata = parquet.read_metadata(file)
    rows = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    rows = rows[:-1] or rows
    return max(1, sum(rows) // max(1, len(rows)))


def _count_tar_samples(file: BinaryIO, version: Version) -> int:
    """Count the samples of a WebDataset tar: members that are the same up to the first dot of the base name."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        keys: dict[tuple[str, str], int] = {}
        last, changes, (_, size_bytes, _) = None, 0, version
        for member in tar:
            folder, _, base = member.name.rpartition("/")
            key = folder, base.partition(".")[0]
            if member.isfile() and not base.startswith("."):
                keys.setdefault(key, member.offset)
                changes += key != last
                last = key
        # If the members of each sample lie together, and the end marker is there; else reading the file finds out
        if changes == len(keys) and size_bytes >= tar.offset + 2 * tarfile.BLOCKSIZE:
            learn_offsets(version, [*keys.values(), tar.offset])
        return len(keys)


def _count_tfrecords(file: BinaryIO, version: Version) -> int:
    (_, size_bytes, _), offsets = version, [0]
    while offsets[-1] < size_bytes:
        file.seek(offsets[-1])
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError(f"a record that ends at byte {offsets[-1] + len(head)}")
        offsets.append(offsets[-1] + _FRAMING_BYTES + _LENGTH.unpack(head)[0])
    if offsets[-1] != size_bytes:
        raise ValueError("it is not a tfrecord file, or is truncated")
    learn_offsets(version, offsets)
    return len(offsets) - 1


COUNTERS: dict[str, Finder] = {
    "parquet": count_rows,
    "webdataset": _count_tar_samples,
    "tfrecord": _count_tfrecords,
}
"""Functions that count the samples of a file from its footer or record headers, for formats with several a file."""
