"""A folder of the user's own files as a dataset: detects their format, sizes and number of samples.

The folder is never written to, and needs no manifest. Files may be at any depth; hidden files, files of other kinds
and files of other splits are skipped. The samples of a file are counted by its footer, record headers or length.

A file's kind is the format that its extension belongs to, else the extension itself:

    photo.JPG -> jpeg    train.tfrecord-00000-of-00004 -> tfrecord    scan.nii.gz -> .nii.gz    README -> "" (none)
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.errors import DatasetError, DlemuError
from datagen.formats import format_base as base
from datagen.formats.format_base import Sizes
from datagen.formats.tfrecord import Format as Tfrecord
from datagen.formats.webdataset import Format as Webdataset
from datagen.layout import Layout
from datagen.registry import library
from datagen.scan import SHOWN_NAMES, files_below, format_of_ending, sizes_on_disk
from datagen.spec import DatasetSpec
from datagen.storage.posix import cache_restored as cache_restored  # optional parts have it from here
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from datagen.thread_pool import map_in_threads

MAX_DEPTH = 16  # maximum nesting of folders; deeper nesting is probably a loop of links
OR_RAW = "or set dataset.format=raw to read each file whole, as one sample"
HOW_TO_CUT = "set dataset.format=mmap_indexed_binary and dataset.record_length_bytes to the stored bytes of a sample"

RAW = "raw"
FLAT = ("indexed_binary", "mmap_indexed_binary")
"""Formats without framing, such as tokens: a user's files are cut into samples of `record_length_bytes`."""
MIN_SHARE_OF_KIND = 0.5  # a kind is common if it has this share of the files of the most common kind
_COMPANIONS = (
    *(".idx", ".index", ".json", ".txt", ".md", ".xml", ".yaml", ".srt", ".vtt", ".pkl", ".model"),
    *("lock.mdb", "readme", "license"),
)
"""Name endings of indexes, labels, vocabularies and the like, which are no data unless the folder has nothing else."""
_SHARD = re.compile(r"(?:[-_.]\d+(?:[-_]of[-_]\d+)?)+$")  # the end of part-00000 and train.tfrecord-00000-of-00004
_EXTENSION = re.compile(r"[^/](\.[a-z][^./]*\.(?:gz|zst|bz2|xz|lz4)|\.[^./]*)$")  # .jpg and .nii.gz
_SPLIT = re.compile(
    r"(?:^|[/ ._\-\d])(?:(?P<training>train(?:ing)?)|val(?:id(?:ation)?)?|dev|test(?:ing)?|eval(?:uation)?)"
    r"(?=[/ ._\-\d]|$)",
    re.IGNORECASE,
)
"""Words by which Hugging Face's `datasets` recognises the split of a path, not as parts of longer words."""

ReadCount = Callable[[BinaryIO, base.Version], int]  # counts in an open file: its samples, or rows of a row group


def group_rows(file: BinaryIO, _: base.Version | None = None) -> int:
    """Return the mean rows of a Parquet file's row groups, except the last one, which may have fewer."""
    metadata = library("pyarrow.parquet", "parquet").read_metadata(file)
    rows = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    full_groups = rows[:-1] or rows
    return max(1, sum(full_groups) // max(1, len(full_groups)))


COUNTERS: dict[str, ReadCount] = {
    "parquet": lambda file, _: int(library("pyarrow.parquet", "parquet").read_metadata(file).num_rows),
    "webdataset": lambda file, version: len(Webdataset().cached_offsets(file, version)) - 1,
    "tfrecord": lambda file, version: len(Tfrecord().cached_offsets(file, version)) - 1,
}
"""Functions that count the samples of a file by its footer or record headers, for formats with many samples in one."""
_counts: dict[tuple[ReadCount, base.Version], int] = {}  # counts read so far: a command inspects a folder several times


@dataclass(frozen=True)
class UserFolder:
    """What was detected in a folder of the user's own files."""

    spec: DatasetSpec  # the settings requested, completed by those detected
    layout: Layout
    sizes: Sizes  # bytes to read of each file
    notes: tuple[str, ...]


def inspect_own_folder(spec: DatasetSpec, storage: StorageSpec) -> UserFolder:
    """Inspect `spec.data_folder`; if `spec.format` is empty, the names of the files determine the format.

    Raises DatasetError if there are no files of `spec.format`, or damaged ones; UserError if folders nest too deep.
    """
    try:
        return _inspect(spec, open_storage(storage.buffered))
    except OSError as error:
        raise DatasetError(
            f"{error.filename or spec.data_folder}: {error.strerror or error}: the folder can't be scanned; check "
            "permissions and the file system, or move away what is not a file"
        ) from error


def _inspect(spec: DatasetSpec, storage: StorageBase) -> UserFolder:
    """Inspect the folder by `storage`. Raises the errors of `inspect_own_folder`, and OSError."""
    format_name, layout, sizes, notes = _find_files(spec, storage)
    if problem := _format_problem(format_name, layout, storage):
        if kind_of(layout.name(0)) != format_name:
            raise DatasetError(f"dataset.format={format_name}: {problem}: leave dataset.format out, {OR_RAW}")
        raw_folder = _inspect(replace(spec, format=RAW), storage)
        note = f"{problem}: each file is read whole, as one sample; if it holds many, {HOW_TO_CUT}"
        return replace(raw_folder, notes=(*raw_folder.notes, note))
    layout, sizes, note = _count_samples(format_name, layout, sizes, spec, storage)
    total_bytes = int(sizes.sum())
    shown_bytes = f"{total_bytes / 1e9:,.3g} GB" if total_bytes >= 10**7 else f"{total_bytes:,} bytes"
    files = f"{layout.num_files:,} {format_name} file{'s' if layout.num_files != 1 else ''}, {shown_bytes}"
    summary = f"the dataset is your own: {files}, in {layout.folder}, which is only read"
    completed = _complete_spec(replace(spec, format=format_name), layout, sizes, storage)
    return UserFolder(completed, layout, sizes, tuple(filter(None, (summary, *notes, note))))


def _find_files(spec: DatasetSpec, storage: StorageBase) -> tuple[str, Layout, Sizes, list[str]]:
    """Return the format, the files to read, their sizes, and notes on skipped files. Raises as `_inspect`."""
    folder = spec.data_folder.rstrip("/") or "/"
    if not storage.is_folder(folder):
        raise DatasetError(f"{folder} is not a folder: set dataset.data_folder to the folder of your files")
    listing = files_below(folder, storage, MAX_DEPTH, refuse_deeper=True)
    if not listing:
        raise DatasetError(f"{folder} holds no files: set dataset.data_folder to the folder of your files")
    format_name, paths, notes = _choose_files(spec, sorted(listing))
    if spec.format not in ("", format_name):
        problem = f"dataset.format={spec.format}, and {folder}/{paths[0]} is named as {format_name}"
        raise DatasetError(f"{problem}: leave dataset.format out, {OR_RAW}")
    ending = extension_of(paths[0]).lstrip(".")
    layout = Layout(
        folder=folder, split="train", num_files=len(paths), num_samples_per_file=1, extension=ending, names=tuple(paths)
    )
    sizes = sizes_on_disk(layout, storage, listing)
    non_empty = np.flatnonzero(sizes)
    if not non_empty.size:
        raise DatasetError(f"{folder} holds only empty files: set dataset.data_folder to the folder of your files")
    if non_empty.size < sizes.size:
        notes.append(f"empty files are skipped: {sizes.size - non_empty.size}")
    return format_name, _subset(layout, non_empty), sizes[non_empty], notes


def _choose_files(spec: DatasetSpec, all_paths: list[str]) -> tuple[str, list[str], list[str]]:
    """Choose among the files of a folder, given as sorted paths below it; return format, files to read, and notes.

    Files of `spec.format` are chosen if any name shows that format. Else the files of the most common kind are chosen
    if a format reads that kind. Else those of all common kinds are, as a label may lie beside each image.

    format  files                       -> chosen
    (none)  0.jpg 1.jpg labels.csv      -> jpeg  0.jpg 1.jpg
    (none)  0.csv 0.jpg 1.csv 1.jpg     -> jpeg  0.jpg 1.jpg                a table beside each file is its label
    (none)  0.mp4 0.srt 1.mp4 1.srt     -> raw   0.mp4 1.mp4                no format reads this kind
    raw     0.jpg 0.seg 1.jpg 1.seg     -> raw   0.jpg 0.seg 1.jpg 1.seg    raw reads any kind
    npz     0.dcm 1.dcm                 -> npz   0.dcm 1.dcm                the names show no other format
    npz     0.jpg 1.jpg                 -> jpeg  0.jpg 1.jpg                the caller refuses this
    """
    format_name = spec.format
    kinds = {path: kind_of(path) for path in all_paths}
    data_files = [path for path in all_paths if not path.lower().endswith(_COMPANIONS)] or all_paths
    counts = Counter(kinds[path] for path in data_files)
    # csv loses a tie: a table beside each file of another kind holds its labels
    most_common = max(counts, key=lambda kind: (counts[kind], kind != "csv"))
    reads_any_kind = format_name in (RAW, *FLAT) or registry.is_dotted(format_name)
    if format_name and format_name in counts:
        chosen_kinds = {format_name}
    elif most_common in registry.names(base.FORMATS) and not reads_any_kind:
        format_name, chosen_kinds = most_common, {most_common}
    else:
        chosen_kinds = {kind for kind, files in counts.items() if files >= MIN_SHARE_OF_KIND * counts[most_common]}
    chosen = [path for path in data_files if kinds[path] in chosen_kinds]
    paths, notes = _training_split(chosen)
    if skipped := sorted(set(all_paths).difference(chosen)):
        skipped_counts = Counter(extension_of(path) or "no ending" for path in skipped)
        shown = ", ".join(f"{extension} ({count})" for extension, count in skipped_counts.most_common(SHOWN_NAMES))
        notes.insert(0, f"files of other kinds are skipped: {shown}; set dataset.format to choose them")
    return format_name or RAW, paths, notes


def _training_split(paths: list[str]) -> tuple[list[str], list[str]]:
    """Return the files of the training split and a note on the skipped ones; all files unless names show both.

    train2017/0.bmp val2017/0.bmp      -> train2017/0.bmp
    a/train-0.bmp a/dev-0.bmp          -> a/train-0.bmp
    train/car/0.bmp train/test/0.bmp   -> both: the first split in a path counts
    bus/0.bmp train/0.bmp van/0.bmp    -> all: no name shows another split
    """
    splits = {path: match for path in paths if (match := _SPLIT.search(path))}
    training = [path for path, match in splits.items() if match["training"]]
    if len(training) in (0, len(splits)):
        return paths, []
    skipped = sorted(set(paths).difference(training))
    return training, [f"files of other splits are skipped: {len(skipped)}, such as {skipped[0]}"]


def kind_of(path: str) -> str:
    """Return the format that the name of a file shows, else its extension with the dot; '' without an extension."""
    extension = extension_of(path)
    format_name = format_of_ending(extension[1:])
    if format_name and format_name != RAW:
        return format_name
    return "tfrecord" if ".tfrecord" in path and not path.endswith(_COMPANIONS) else extension


def extension_of(path: str) -> str:
    """Return the extension in lower case, such as .jpg or .tar.gz, ignoring the number of a shard."""
    match = _EXTENSION.search(_SHARD.sub("", path.lower()))
    return match[1] if match else ""


def _subset(layout: Layout, files: NDArray[np.intp]) -> Layout:
    assert layout.names is not None
    names = tuple(layout.names[file] for file in files)
    return replace(layout, names=names, num_files=len(names))


def _format_problem(format_name: str, layout: Layout, storage: StorageBase) -> str:
    """Return why the format reads neither the first nor the last file, or ''. Raises DatasetError if one is damaged."""
    if format_name in (RAW, *FLAT, *COUNTERS) or registry.is_dotted(format_name):
        return ""  # there is nothing to parse, or the file is opened when its samples are counted
    file_format = base.format_named(format_name)
    file_format.own_files = True
    problems = []
    paths = dict.fromkeys((layout.path(0), layout.path(layout.num_files - 1)))
    for path in paths:
        try:
            with base.reading(path), closing(base.Source(path, storage.open(path), storage.alignment)) as source:
                file_format.open(source, 1).sample(0)
        except DlemuError as error:
            problems.append(base.message_without_advice(error))
    if 0 < len(problems) < len(paths):
        raise DatasetError(f"{problems[0]}: move it away, {OR_RAW}")
    return problems[0] if problems else ""


def _count_samples(
    format_name: str, layout: Layout, sizes: Sizes, spec: DatasetSpec, storage: StorageBase
) -> tuple[Layout, Sizes, str]:
    """Return the files with an equal number of samples, the bytes to read of each, and a note. Raises DatasetError."""
    if format_name not in (*FLAT, *COUNTERS):
        subject = f"each .{layout.extension} file" if layout.extension else "each file"
        note = f"{subject} is read whole, as one sample: if it holds many, {HOW_TO_CUT}"
        return layout, sizes, note if format_name == RAW and spec.format != RAW else ""
    if format_name in COUNTERS:
        counts = np.array(_counts_in(COUNTERS[format_name], layout, sizes, storage))
        files, samples, note = _equal_counts(counts)
        if samples < 1:
            empty = layout.path(int(counts.argmin()))
            raise DatasetError(f"{empty} holds no samples: move all such files away")
        return replace(_subset(layout, files), num_samples_per_file=samples), sizes[files], note
    sample_bytes = max(1, int(spec.record_length_bytes))
    files, samples, _ = _equal_counts(sizes // sample_bytes)
    if samples < 1:
        problem = f"{layout.folder}: no file has the {sample_bytes} bytes of a sample"
        raise DatasetError(f"{problem}: set dataset.record_length_bytes to those of one sample")
    used_bytes = samples * sample_bytes  # a remainder at the end of a file is not read
    layout = replace(_subset(layout, files), num_samples_per_file=samples, used_bytes=used_bytes)
    note = f"each file is cut into {samples:,} samples of {sample_bytes:,} bytes (dataset.record_length_bytes)"
    return layout, np.minimum(sizes[files], used_bytes), note


def _equal_counts(counts: Sizes) -> tuple[NDArray[np.intp], int, str]:
    """Return the files to read, the samples to read of each, and a note; `counts` are the samples in the files."""
    # Read as many samples in all as possible: of 9, 9 and 2, read 9 of each of the first two files
    ordered = np.sort(counts)
    samples = int(ordered[(ordered * np.arange(len(counts), 0, -1)).argmax()])
    files = np.flatnonzero(counts >= samples)
    samples_read = samples * len(files)
    note = f"{samples_read:,} of {counts.sum():,} samples are read: {samples} of each of {len(files)} files"
    return files, samples, note if samples_read < counts.sum() else ""


def _complete_spec(spec: DatasetSpec, layout: Layout, sizes: Sizes, storage: StorageBase) -> DatasetSpec:
    """Return the requested settings, completed by the number, samples and sizes of the files in use."""
    parquet = spec.parquet
    if spec.format == "parquet":  # the memory for a batch follows from the rows of a row group
        parquet = replace(parquet, row_group_size=min(_counts_in(group_rows, layout, sizes, storage)))
    sample_sizes = sizes / layout.num_samples_per_file
    quantiles: tuple[float, ...] = ()
    if sample_sizes.min() < sample_sizes.max() and not spec.parquet.columns:
        # 65 quantiles, steps of 1.6 %: few enough for config.yaml
        quantiles = tuple(np.quantile(sample_sizes, np.linspace(0, 1, 65)).tolist())
    return replace(
        spec,
        num_files_train=layout.num_files,
        num_files_eval=0,
        num_samples_per_file=layout.num_samples_per_file,
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


def _counts_in(read_count: ReadCount, layout: Layout, sizes: Sizes, storage: StorageBase) -> list[int]:
    """Return a count from each file, cached until the file changes. Raises DatasetError."""

    def count_in(file: int) -> int:
        path = layout.path(file)
        local = storage.local_path(path)
        version = base.version_of(local or path, int(sizes[file]))
        try:
            if (read_count, version) not in _counts:
                source = base.Source(path, storage.open_received(path))
                with cache_restored([local]), closing(source):
                    stream = io.BufferedReader(base.SourceStream(source), base.HEADERS_AT_ONCE_BYTES)
                    _counts[read_count, version] = read_count(stream, version)
        except (OSError, ValueError, base.DamagedError) as error:
            raise DatasetError(
                f"{path}: its samples can't be counted ({error}): restore it, decompress it if it is compressed, "
                f"or move it away, {OR_RAW}"
            ) from error
        return _counts[read_count, version]

    return map_in_threads(count_in, range(layout.num_files))
