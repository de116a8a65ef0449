"""A folder of the user's own files as a dataset: detects their format, sizes and number of samples.

The folder is never written to, and no manifest is needed. Files may be in the folder itself, in one folder for each
class, or deeper; hidden files are skipped, and files of other kinds and of other splits are left out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.errors import DatasetError, DlemuError, UserError
from datagen.formats import format_base as base
from datagen.formats._picture import pillow_pixels
from datagen.formats.tfrecord import Format as Tfrecord
from datagen.formats.webdataset import Format as Webdataset
from datagen.layout import Layout, has_own_length
from datagen.registry import library
from datagen.scan import SHOWN_NAMES, format_of_ending, sizes_on_disk
from datagen.spec import DatasetSpec
from datagen.storage.posix import cache_restored as cache_restored  # recordings read by it, too
from datagen.storage.storage_base import Listed, StorageBase, StorageSpec, open_storage
from datagen.thread_pool import of_each

RAW = "raw"
MAX_DEPTH = 16  # maximum nesting of folders; deeper nesting is taken for a loop of links
MIN_SHARE_OF_KIND = 0.5
"""Files of several kinds are all data if each kind has at least this share of the files of the most common one."""
COUNTED_FILES = 256  # maximum files whose samples are counted, evenly spaced among all files
_SHOWN_IN_GB = 10**7  # smaller ones, such as 6e-09 GB, are shown in bytes
QUANTILES = 65  # steps of 1.6 %: each is a number in config.yaml
FLAT = ("indexed_binary", "mmap_indexed_binary")
"""Formats without framing, such as tokens: a user's files are cut into records of `record_length_bytes`."""
TOKEN_FILE_BYTES = 4 << 20  # .bin files of this mean size are more likely tokens than one sample each
_COMPANIONS = (
    *(".idx", ".index", ".json", ".txt", ".md", ".xml", ".yaml", ".srt", ".vtt", ".pkl", ".model"),
    *("lock.mdb", "readme", "license"),
)
"""Ends of the names of files that are not data where there are others, such as indexes, labels and vocabularies."""
_CONTAINERS = (
    *("tar", "tgz", "zip", "7z", "gz", "zst", "bz2", "xz", "json", "jsonl", "ndjson", "csv", "tsv", "txt", "parquet"),
    *("arrow", "feather", "avro", "orc", "tfrecord", "tfrecords", "array_record", "mds", "rec", "beton", "mdb", "lmdb"),
    *("db", "sqlite", "warc"),
)
"""Extensions, without that of a compression, of files that mostly hold many samples."""
_COMPRESSIONS = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f": "zstd", b"BZh": "bzip2", b"\xfd7z": "xz"}  # by first bytes
_SHARD = re.compile(r"(?:[-_.]\d+(?:[-_]of[-_]\d+)?)+$")  # the end of part-00000 and train.tfrecord-00000-of-00004
_ENDING = re.compile(r"[^/](\.[a-z][^./]*\.(?:gz|zst|bz2|xz|lz4)|\.[^./]*)$")
_SPLIT = re.compile(
    r"(?:^|[/ ._\-\d])(?:(?P<training>train(?:ing)?)|(?P<validation>val(?:id(?:ation)?)?|dev)"
    r"|(?P<test>test(?:ing)?|eval(?:uation)?))(?=[/ ._\-\d]|$)",
    re.IGNORECASE,
)
"""The split that a path shows, by the words that Hugging Face's `datasets` looks for, with no letters around."""
_OR_RAW = "or set dataset.format=raw to read each file whole, as one sample"
_CUT = "set dataset.format=mmap_indexed_binary and dataset.record_length_bytes to the stored bytes of a sample"


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

    Files whose names don't show `spec.format` are read as such if they can be; else, with `strict`, they are refused.
    With `decodes` some of its pictures must be ones that Pillow decodes.
    """
    opened = open_storage(storage.buffered)
    try:
        found = _inspect(spec, opened, strict)
        if decodes and has_own_length(found.spec):
            _in_each(pixel_bytes, found.layout, found.sizes, _some_files(found.layout), opened)
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
    stated_bytes = _files_below(storage, folder)
    listed = sorted(stated_bytes)
    if not listed:
        raise DatasetError(f"{folder} holds no files: set dataset.data_folder to the folder of your files")

    def bytes_of(names: list[str]) -> float:
        some = names[:: -(-len(names) // COUNTED_FILES)]
        known = [stated_bytes[each] for each in some]
        sizes = storage.sizes(f"{folder}/{each}" for each in some) if None in known else known
        return len(names) / len(some) * sum(size or 0 for size in sizes)

    name, names, notes = _chosen(spec, listed, bytes_of)
    if strict and spec.format not in ("", name):
        seen = f"dataset.format={spec.format}, and {folder}/{names[0]} is named as {name}"
        raise DatasetError(f"{seen}: leave dataset.format out, {_OR_RAW}")
    layout = Layout(
        folder=folder,
        split="train",
        num_files=len(names),
        num_samples_per_file=1,
        extension=_ending(names[0]).lstrip("."),
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
    try:
        name, layout, sizes, more = _with_samples(name, layout, sizes, spec, storage)
    except DatasetError:
        if strict or name in FLAT or kind_of(names[0], (name,)) == name:
            raise
        return _inspect(replace(spec, format=""), storage, strict)
    kind, _, compression = layout.extension.partition(".")
    if kind in ("mdb", "lmdb") and spec.format not in (RAW, name):
        raise DatasetError(
            f"{layout.path(0)} is a database of LMDB, of many samples: {_CUT}, or dataset.format=raw to read it whole"
        )
    if name == RAW and (kind in _CONTAINERS or (kind in ("bin", "") and sizes.mean() >= TOKEN_FILE_BYTES)):
        which = f"each .{layout.extension} file" if kind else "each file"
        ways = "decompress tar and tfrecord files" if compression or kind == "tgz" else ""
        ways = ways if kind else "dataset.format to the one that they are of, such as tfrecord"
        notes.append(f"{which} is read whole, as one sample: if they hold many, {_CUT}{ways and f', or {ways}'}")
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


def _chosen(
    spec: DatasetSpec, listed: list[str], bytes_of: Callable[[list[str]], float]
) -> tuple[str, list[str], list[str]]:
    """Return a format, its files of the training split, and notes on the others.

    The format is the one requested if names show such files. Else, of the kinds at least half as common as the most
    common one, it is that with the most bytes: beside each image there may be a label or a row of a table. If `raw` is
    requested, or a format that names don't show, all these kinds are read as such.
    """
    known = frozenset(registry.names(base.FORMATS)) - {RAW}
    kinds = {name: kind_of(name, known) for name in listed}
    data = [name for name in listed if not name.lower().endswith(_COMPANIONS)] or listed
    common, wanted = _common(data, kinds), spec.format
    of_kind = [name for name in data if wanted and kinds[name] == wanted]
    names, notes = _training(of_kind, spec.data_folder)
    if not of_kind:
        best = max(common, key=lambda kind: bytes_of(common[kind]))
        of_kind = common[best]
        names, notes = _training(of_kind, spec.data_folder)
        # Where an earlier look chose these, their number is in the settings: no other kind joins them in the run.
        is_found = wanted == RAW and 0 < spec.num_files_train <= len(names)
        any_kind = wanted in (RAW, *FLAT) or registry.is_dotted(wanted)
        if not is_found and (any_kind or (wanted and best not in known)):
            pool = [name for name in listed if kinds[name] != ".idx"] if best in known and wanted == RAW else data
            of_kind = sorted(itertools.chain(*_common(pool, kinds).values()))
            names, notes = _training(of_kind, spec.data_folder)
        elif not is_found:
            wanted = best if best in known else RAW
    if others := sorted(set(listed).difference(of_kind)):
        endings = Counter(_ending(other) or "no ending" for other in others)
        shown = ", ".join(f"{ending} ({count})" for ending, count in endings.most_common(SHOWN_NAMES))
        verb = "files are" if len(others) != 1 else "file is"
        formats = " or ".join(sorted({kinds[other] for other in others} & known & common.keys()))
        way = f"; to read others, set dataset.format={formats}" if formats else ""
        notes = [f"{len(others)} {verb} of other kinds and not read: {shown}{way}", *notes]
    return wanted, names, notes


def _common(names: list[str], kinds: dict[str, str]) -> dict[str, list[str]]:
    """Return the names of each kind that is at least half as common as the most common one."""
    of_kind: dict[str, list[str]] = {}
    for name in names:
        of_kind.setdefault(kinds[name], []).append(name)
    fewest = MIN_SHARE_OF_KIND * max(map(len, of_kind.values()))
    return {kind: each for kind, each in of_kind.items() if len(each) >= fewest}


def _training(names: list[str], folder: str) -> tuple[list[str], list[str]]:
    """Return the files of the training split, and a note on the others; all files if their paths show no splits.

    The first split in a path counts. Where more folders, or files, are of no split, all of them are taken for classes.
    """
    marks = {name: mark for name in names if (mark := _SPLIT.search(name))}
    train = [name for name, mark in marks.items() if mark["training"]]
    if not train or (len(train) == len(marks) and not any(name.startswith("train/") for name in train)):
        return names, []
    depth = min(name.count("/", 0, mark.end()) for name, mark in marks.items())
    tops = {name: "/".join(name.split("/")[: depth + 1]) for name in names}
    are_folders = all("/" in name[mark.end() :] for name, mark in marks.items())
    classes = {top for name, top in tops.items() if name not in marks and not (are_folders and top == name)}
    left_out = sorted(set(names).difference(train))
    if not left_out or len(classes) > len({name[: mark.end()] for name, mark in marks.items()}):
        return names, []
    splits = sorted({(marks[name].lastgroup or "") if name in marks else "other" for name in left_out}, reverse=True)
    where = next((top for name in left_out if (top := tops[name]) != name), "") if are_folders else ""
    way = (
        f"dataset.data_folder={folder.rstrip('/')}/{where} reads"
        if where
        else "in a folder of their own, dataset.data_folder reads"
    )
    them = "them" if all(tops[name] == where for name in left_out) or not where else "its part"
    plural = "s" if len(left_out) != 1 else ""
    return train, [f"{len(left_out)} {' and '.join(splits)} file{plural} left out: {way} {them}"]


def kind_of(name: str, known: Collection[str] = ()) -> str:
    """Return the format (of those `known`, or all) that a name indicates; else its ending, with the dot."""
    ending = _ending(name)
    named = format_of_ending(ending[1:])
    if named != RAW and named in (known or registry.names(base.FORMATS)):
        return named
    return "tfrecord" if ".tfrecord" in name and not name.endswith(_COMPANIONS) else ending


def _ending(name: str) -> str:
    """Return the ending in lower case, with one before that of a compression, without the number of a shard."""
    match = _ENDING.search(_SHARD.sub("", name.lower()))
    return match[1] if match else ""


def _with_samples(
    name: str, layout: Layout, sizes: NDArray[np.int64], spec: DatasetSpec, storage: StorageBase
) -> tuple[str, Layout, NDArray[np.int64], list[str]]:
    """Return the format to read the files by, the layout and sizes of the files to be read, and notes for the user."""
    length = max(1, int(spec.record_length_bytes))
    if name in FLAT:
        return _with_equal(name, layout, sizes, sizes // length, length)
    count = COUNTERS.get(name)
    if count is None:
        is_local = storage.local_path(layout.path(0)) is not None
        shows = layout.names is not None and kind_of(layout.names[0], (name,)) == name
        if name == RAW or registry.is_dotted(name) or (_can_read(name, layout, storage) if is_local else shows):
            return name, layout, sizes, []
        if shows:
            note = f"{name} files of this structure are read whole, as bytes: each is one sample"
            return RAW, layout, sizes, [f"{note}; if they hold many, {_CUT}"]
        raise DatasetError(
            f"dataset.format={name}, and {layout.path(0)} can't be read as {name}: leave dataset.format out, {_OR_RAW}"
        )
    counted = _some_files(layout)
    counts = np.array(_in_each(count, layout, sizes, counted, storage))
    if len(counted) < layout.num_files:
        samples = int(counts.min())
        notes = [f"{samples} samples of each file are read: the fewest of {len(counted)} files that were counted"]
        return name, replace(layout, num_samples_per_file=samples), sizes, notes
    return _with_equal(name, layout, sizes, counts)


def _with_equal(
    name: str, layout: Layout, sizes: NDArray[np.int64], counts: NDArray[np.int64], length: int = 0
) -> tuple[str, Layout, NDArray[np.int64], list[str]]:
    """Do as `_with_samples` for files of these numbers of samples, which are of `length` bytes if there is no framing.

    The same number of samples is read from each file. Files with fewer are skipped if that gives more samples in all.
    """
    samples = max({int(each) for each in counts}, key=lambda each: each * int((counts >= each).sum()))
    if samples < 1:
        why = f"its {name} files hold no samples"
        if length:
            why = f"no file has the {length} bytes of a sample: set dataset.record_length_bytes to those of one sample"
        raise DatasetError(f"{layout.folder}: {why}")
    kept = np.flatnonzero(counts >= samples)
    notes = []
    if length:
        notes.append(f"each file is cut into {samples:,} samples of {length:,} bytes (dataset.record_length_bytes)")
    elif int(counts.sum()) > samples * len(kept):
        notes.append(
            f"{samples * len(kept):,} of {int(counts.sum()):,} samples are read: {samples} of each of {len(kept)} files"
        )
    used_bytes = samples * length
    layout = replace(_subset(layout, kept), num_samples_per_file=samples, used_bytes=used_bytes)
    return name, layout, np.minimum(sizes[kept], used_bytes) if length else sizes[kept], notes


def _some_files(layout: Layout) -> list[int]:
    """Return which files are opened to learn their structure: at most COUNTED_FILES, evenly spaced."""
    step = max(1, layout.num_files / COUNTED_FILES)
    return sorted({int(place * step) for place in range(min(layout.num_files, COUNTED_FILES))})


Finder = Callable[[BinaryIO, base.Version], int]  # finds a number in an open file

_found: dict[tuple[Finder, base.Version], int] = {}
"""What was found in a file, until it changes: a command looks at a folder repeatedly."""


def _in_each(
    find: Finder, layout: Layout, sizes: NDArray[np.int64], files: Sequence[int], storage: StorageBase
) -> list[int]:
    """Return what `find` returns for each of some files; one that has not changed since is not opened again."""

    def found(path: str, size_bytes: int, own: StorageBase) -> int:
        local = own.local_path(path)
        version = base.version_of(path if local is None else local, size_bytes)
        if (find, version) not in _found:
            with cache_restored([local] if local else []), _opened(path, own) as file:
                _found[find, version] = find(file, version)
        return _found[find, version]

    def in_thread(own: StorageBase, numbers: Sequence[int]) -> Iterator[int]:
        for file in numbers:
            path = layout.path(file)
            try:
                yield found(path, int(sizes[file]), own)
            except (OSError, ValueError, SyntaxError, RuntimeError, base.DamagedError) as error:
                verb = "decoded" if find is pixel_bytes else "counted"
                seen, advice = str(error), "restore it, or move it away"
                with contextlib.suppress(OSError), _opened(path, own) as opened:
                    if name := _COMPRESSIONS.get(opened.read(3)):
                        seen, advice = f"it is compressed with {name}", "decompress it"
                raise DatasetError(f"{path}: its samples can't be {verb} ({seen}): {advice}, {_OR_RAW}") from error

    return of_each(storage, files, in_thread)


@contextlib.contextmanager
def _opened(path: str, storage: StorageBase) -> Iterator[BinaryIO]:
    """Open a file to read its headers."""
    with contextlib.closing(base.Source(path, storage.open_received(path))) as source:
        yield io.BufferedReader(base.SourceStream(source), base.HEADERS_AT_ONCE_BYTES)


def _can_read(name: str, layout: Layout, storage: StorageBase) -> bool:
    """Return whether the format's module can read the first and the last file; raises DatasetError if only one of them.

    Files of a structure that is not dlemu's own are all alike: one that differs is damaged.
    """
    file_format = base.format_named(name)
    file_format.own_files = True
    paths = [layout.path(file) for file in sorted({0, layout.num_files - 1})]
    errors = {}
    for path in paths:
        try:
            with base.opened_file(file_format, path, storage, 1) as opened:
                opened.sample(0)
        except DlemuError as error:
            errors[path] = error
    if 0 < len(errors) < len(paths):
        ((damaged, problem),) = errors.items()
        (sound,) = set(paths) - {damaged}
        raise DatasetError(
            f"{damaged} can't be read as {name} ({base.what_is_damaged(problem)}), and {sound} can: restore it or move "
            f"it away, {_OR_RAW}"
        )
    return not errors


def pixel_bytes(file: BinaryIO, _: base.Version | None = None) -> int:
    """Return the bytes of a picture's pixels."""
    return len(pillow_pixels(memoryview(file.read())))


def count_rows(file: BinaryIO, _: base.Version | None = None) -> int:
    """Return the rows of a Parquet file, by its footer."""
    parquet: Any = library("pyarrow.parquet", "parquet")
    return int(parquet.read_metadata(file).num_rows)


def group_rows(file: BinaryIO, _: base.Version | None = None) -> int:
    """Return the mean rows of a row group, without the last, which has what is left."""
    parquet: Any = library("pyarrow.parquet", "parquet")
    metadata = parquet.read_metadata(file)
    rows = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    rows = rows[:-1] or rows
    return max(1, sum(rows) // max(1, len(rows)))


COUNTERS: dict[str, Finder] = {
    "parquet": count_rows,
    "webdataset": lambda file, version: len(Webdataset().known_offsets(file, version)) - 1,
    "tfrecord": lambda file, version: len(Tfrecord().known_offsets(file, version)) - 1,
}
"""Functions that count the samples of a file from its footer or record headers, for formats with several a file."""
