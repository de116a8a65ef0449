"""Finding the files of a split by their names, and comparing their sizes with the expected ones.

Names that dlemu and DLIO give follow a pattern, PREFIX_I_of_N.EXTENSION, in sub-folder I % number of sub-folders.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.errors import DatasetError, no_such_file
from datagen.layout import Layout, endings_of
from datagen.storage.storage_base import Listed, StorageBase

SHOWN_NAMES = 3  # maximum names in a message
SIZE_CHECKS = 4096  # maximum files whose size is looked up; the others are assumed to have the computed size

Advice = Callable[[], str]  # returns text that says how to make the dataset, for a message


@functools.cache  # asked for each name of a folder
def format_of_ending(ending: str) -> str:
    """Return the format whose files have this extension (`endings_of`); empty if there is none."""
    return next((name for name in registry.names("datagen.formats") if ending in endings_of(name)), "")


@dataclass(frozen=True)
class Scan:
    """The files below one split's folder, at most one folder down."""

    names: list[str]  # paths, below the folder, of files with the format's extension, sorted by base name
    other_extensions: Counter[str]
    num_subfolders: int


def list_files(folder: str, endings: tuple[str, ...], storage: StorageBase) -> Scan:
    """List the files with these extensions, in any case, in a split's folder; a missing folder counts as empty.

    Hidden names are skipped, and the sub-folder `valid`, where `folder` is that of the dataset. Raises OSError.
    """
    suffixes = tuple(f".{ending}" for ending in endings)
    names: list[str] = []
    other_extensions: Counter[str] = Counter()
    subfolders = 0
    try:
        with storage.entries(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "valid":
                    continue
                paths = [entry.name]
                if entry.is_dir():
                    subfolders += 1
                    with storage.entries(f"{folder}/{entry.name}") as inner:
                        paths = [f"{entry.name}/{file.name}" for file in inner if not file.name.startswith(".")]
                for name in paths:
                    if name.lower().endswith(suffixes):
                        names.append(name)
                    else:
                        other_extensions[os.path.splitext(name)[1] or name] += 1
    except FileNotFoundError:
        return Scan([], Counter(), 0)
    names.sort(key=lambda name: name.rpartition("/")[2])
    return Scan(names, other_extensions, subfolders)


def count_by_pattern(layout: Layout, storage: StorageBase) -> int | None:
    """Return how many files have the layout's names, or None if one of the files in use is missing.

    It keeps one byte per file, so that a million files take about a second and a megabyte; `list_files` and
    `match_names` are for folders where this returns None. Raises OSError.
    """
    if layout.named_files < layout.num_files:
        return None
    is_listed, folders = bytearray(layout.named_files), layout.folders()
    digits = f"([0-9]{{{len(str(layout.named_files))}}})"
    index_in = re.compile(f"{re.escape(layout.file_prefix)}_{digits}{re.escape(layout.pattern_suffix)}").fullmatch
    for number, folder in enumerate(folders):
        try:
            with storage.entries(folder) as entries:
                for entry in entries:
                    match = index_in(entry.name)
                    file = int(match[1]) if match else -1
                    if 0 <= file < layout.named_files and file % len(folders) == number:
                        is_listed[file] = 1
        except FileNotFoundError:
            return None
    return sum(is_listed) if all(is_listed[: layout.num_files]) else None


def match_names(scanned: Scan, requested: Layout, advice: Advice) -> tuple[Layout, list[str]]:
    """Return a layout of as many of the files found as requested, and notes for the user.

    If names follow the pattern, for any N, the layout computes them; else it lists the names in order. Raises
    DatasetError: there are fewer files than requested, or some are missing.
    """
    wanted, found, folder = requested.num_files, len(scanned.names), requested.folder
    seen = f"{folder} holds {found} {requested.extension} file{'s' if found != 1 else ''}, {wanted} are requested"
    matched = _match_pattern(scanned, requested)
    if matched is not None:
        there = set(scanned.names)
        missing = [name for name in map(matched.name, range(wanted)) if name not in there]
        if not missing:
            return matched, surplus_note(matched, found)
        base_names = {name.rpartition("/")[2] for name in there}
        lost = [name for name in missing if name.rpartition("/")[2] not in base_names]  # from all sub-folders
        if lost:
            shown = ", ".join(lost[:SHOWN_NAMES]) + (", ..." if len(lost) > SHOWN_NAMES else "")
            raise DatasetError(f"{seen}: {len(lost)} missing ({shown}). {advice()}")
    if not found:
        raise DatasetError(f"{seen}. {advice()}")
    if found < wanted:
        setting = f"dataset.num_files_{'train' if requested.split == 'train' else 'eval'}"
        raise DatasetError(
            f"{seen}, and a dataset is not extended: set {setting}={found} to use what is there, or "
            "dataset.data_folder to a new folder"
        )
    note = f"{folder}: {found} files, whose names or sub-folders follow no pattern, so they are taken in order of name"
    return replace(requested, names=tuple(scanned.names[:wanted])), [note]


def _match_pattern(scanned: Scan, requested: Layout) -> Layout | None:
    """Return the layout whose pattern the names follow: the prefix and N requested, or the only prefix and N found."""
    pattern = re.compile(rf"(?:.*/)?(.+)_\d+_of_(\d+)\.{re.escape(requested.extension)}")
    matches = map(pattern.fullmatch, scanned.names)
    found = {(match[1], int(match[2])) for match in matches if match}
    prefix, named_files = requested.file_prefix, requested.named_files
    if (prefix, named_files) not in found:
        if len(found) != 1:
            return None
        prefix, named_files = found.pop()
    if named_files < requested.num_files:
        return None
    return replace(requested, file_prefix=prefix, named_files=named_files, num_subfolders=scanned.num_subfolders)


def surplus_note(layout: Layout, found: int) -> list[str]:
    """Return a note if there are more files than are used."""
    if found <= layout.num_files:
        return []
    return [f"{layout.folder} holds {found} files; the first {layout.num_files} by name are used"]


def wrong_files_message(requested: Layout, scanned: Scan) -> str:
    """Return the message for a folder without files of the format: which files it has, and how to read them."""
    extension, count = scanned.other_extensions.most_common(1)[0]
    format_name = format_of_ending(extension.lstrip(".").lower())
    advice = f"dataset.format={format_name}" if format_name else "dataset.source=folder to read files of your own"
    seen = (
        f"{requested.folder} holds {count} {extension} file{'s' if count != 1 else ''}, none of .{requested.extension}"
    )
    return f"{seen}: set {advice}, or dataset.data_folder to another folder"


def wrong_sizes(path: Callable[[int], str], sizes: NDArray[np.int64], storage: StorageBase) -> tuple[int, list[str]]:
    """Compare the sizes of at most 4096 files with `sizes`; return how many were compared, and a message per mismatch.

    `path` returns the path of a file, given its index in `sizes`. Raises OSError.
    """
    count = min(len(sizes), SIZE_CHECKS)
    random = np.random.default_rng(1)  # a fixed seed, so that every inspection checks the same files
    files = random.choice(len(sizes), count, replace=False) if count else np.empty(0, np.int64)
    looked_up = {path(file): int(sizes[file]) for file in sorted(files.tolist())}
    wrong = []
    for (name, wanted), size in zip(looked_up.items(), storage.sizes(looked_up), strict=True):
        if size is None:
            wrong.append(f"{name} is missing")
        elif size != wanted:
            wrong.append(f"{name} has {size} bytes, wanted {wanted}")
    return count, wrong


def sizes_on_disk(layout: Layout, storage: StorageBase) -> NDArray[np.int64]:
    """Return the size of every file in use: as listed by object stores, else looked up. Raises OSError."""
    paths = [layout.path(file) for file in range(layout.num_files)]
    listed: dict[str, int] = {}
    folders = set(map(os.path.dirname, paths)) if storage.is_remote else set[str]()
    for folder in folders:  # listing takes a request for 1000 objects; looking up sizes, a request for each object
        with contextlib.suppress(FileNotFoundError), storage.entries(folder) as entries:
            for entry in entries:
                if isinstance(entry, Listed) and entry.size_bytes is not None and not entry.is_dir():
                    listed[f"{folder}/{entry.name}"] = entry.size_bytes
    looked_up = [path for path in paths if path not in listed]
    for path, size in zip(looked_up, storage.sizes(looked_up), strict=True):
        if size is None:
            raise no_such_file(path)
        listed[path] = size
    return np.array([listed[path] for path in paths], np.int64)
