"""Finds the files of a split by their names, and compares their sizes with the expected ones.

dlemu and DLIO name files by a pattern, PREFIX_I_of_N.EXTENSION, in sub-folder I % number of sub-folders.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from datagen import registry
from datagen.errors import DatasetError, UserError, no_such_file
from datagen.formats.format_base import Sizes
from datagen.layout import Layout, endings_of
from datagen.storage.storage_base import Listed, StorageBase

SHOWN_NAMES = 3  # maximum names in a message
SIZE_CHECKS = 4096  # maximum files whose size is compared; the others are assumed to have the computed size


@functools.cache  # called for each name in a folder
def format_of_ending(ending: str) -> str:
    """Return the format whose files have this extension (`endings_of`); '' if there is none."""
    return next((name for name in registry.names("datagen.formats") if ending in endings_of(name)), "")


def files_below(
    folder: str, storage: StorageBase, levels: int, prefix: str = "", *, refuse_deeper: bool = False
) -> dict[str, int | None]:
    """Return the sizes of the files at most `levels` folders down, by path below `folder`; None if not in the listing.

    Hidden names are skipped, and a missing folder counts as empty. `prefix` is for the recursion. Raises OSError and,
    with `refuse_deeper`, UserError if folders nest deeper, because a link may lead back up.
    """
    sizes: dict[str, int | None] = {}
    subfolders: list[str] = []
    with contextlib.suppress(FileNotFoundError), storage.entries(f"{folder}/{prefix}".rstrip("/")) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                subfolders.append(f"{prefix}{entry.name}/")
            else:
                sizes[f"{prefix}{entry.name}"] = entry.size_bytes if isinstance(entry, Listed) else None
    if refuse_deeper and subfolders and not levels:
        raise UserError(f"{folder}/{subfolders[0]} nests too deep: move it up, or remove the link that leads back up")
    for subfolder in subfolders if levels else ():
        sizes |= files_below(folder, storage, levels - 1, subfolder, refuse_deeper=refuse_deeper)
    return sizes


def find_files(
    expected: Layout, endings: Collection[str], storage: StorageBase, command_hint: Callable[[], str]
) -> tuple[Layout, list[str]]:
    """Find as many files as expected; return their layout, and notes for the user.

    Files have one of the extensions `endings`, in upper or lower case, and are at most one folder down, but not in
    `valid/`, the other split. If names follow the pattern, for any N, the layout computes them; else it lists them in
    order. `command_hint` returns the command that makes the dataset. Raises OSError; DatasetError if files are missing.
    """
    requested = expected.num_files
    layout = expected
    count = _count_by_pattern(expected, storage)
    if count is None:  # not all files have names of the expected pattern
        all_paths = [path for path in files_below(expected.folder, storage, 1) if not path.startswith("valid/")]
        suffixes = tuple(f".{ending}" for ending in endings)
        paths = {path for path in all_paths if path.lower().endswith(suffixes)}
        if all_paths and not paths:
            raise DatasetError(_wrong_files_message(expected, all_paths))
        by_pattern = _layout_by_pattern(paths, expected)
        if by_pattern is None or not paths.issuperset(map(by_pattern.name, range(requested))):
            return _list_names(expected, paths, by_pattern, command_hint)
        layout, count = by_pattern, len(paths)
    surplus = f"{expected.folder} holds {count} files; the first {requested} by name are used"
    return layout, [surplus] if count > requested else []


def _list_names(
    expected: Layout, paths: Collection[str], by_pattern: Layout | None, command_hint: Callable[[], str]
) -> tuple[Layout, list[str]]:
    """Return a layout that lists names, and a note. Raises DatasetError for too few files, or gaps in the pattern."""
    count, requested, folder = len(paths), expected.num_files, expected.folder
    problem = f"{folder} holds {count} {expected.extension} file{'s' if count != 1 else ''}, {requested} requested"
    base_names = set(map(os.path.basename, paths))
    pattern_names = list(map(by_pattern.name, range(requested))) if by_pattern else []
    if missing := [name for name in pattern_names if os.path.basename(name) not in base_names]:  # in any sub-folder
        shown = ", ".join(missing[:SHOWN_NAMES]) + (", ..." if len(missing) > SHOWN_NAMES else "")
        raise DatasetError(f"{problem}: {len(missing)} missing ({shown}). Make it with: {command_hint()}")
    if not count:
        raise DatasetError(f"{problem}. Make it with: {command_hint()}")
    if count < requested:
        setting = f"dataset.num_files_{'train' if expected.split == 'train' else 'eval'}"
        raise DatasetError(
            f"{problem}, and a dataset is not extended: set {setting}={count} to use what is there, or "
            "dataset.data_folder to a new folder"
        )
    note = f"{folder}: {count} files, whose names or sub-folders follow no pattern, so they are taken in order of name"
    names = sorted(paths, key=lambda path: (os.path.basename(path), path))
    return replace(expected, names=tuple(names[:requested]), named_files=requested), [note]


def _count_by_pattern(layout: Layout, storage: StorageBase) -> int | None:
    """Return how many files are named as in the layout; None if one of the files in use is missing. Raises OSError."""
    if layout.named_files < layout.num_files:
        return None
    folders = layout.folders()
    is_listed = bytearray(layout.named_files)  # a byte for each file: a million files take 1 MB, and a second
    digits = f"([0-9]{{{len(str(layout.named_files))}}})"
    match_name = re.compile(f"{re.escape(layout.file_prefix)}_{digits}{re.escape(layout.pattern_suffix)}").fullmatch
    for number, folder in enumerate(folders):
        with contextlib.suppress(FileNotFoundError), storage.entries(folder) as entries:
            for entry in entries:
                match = match_name(entry.name)
                file = int(match[1]) if match else -1
                if 0 <= file < layout.named_files and file % len(folders) == number:
                    is_listed[file] = 1
    return sum(is_listed) if all(is_listed[: layout.num_files]) else None


def _layout_by_pattern(paths: Collection[str], expected: Layout) -> Layout | None:
    """Return the layout for the pattern of these names: the expected one if any has it, else the only one.

    A pattern is a prefix and N. Return None without a pattern, with several others, or if N is below `num_files`.
    """
    match_name = re.compile(rf"(?:.*/)?(.+)_\d+_of_(\d+)\.{re.escape(expected.extension)}").fullmatch
    patterns = {(match[1], int(match[2])) for match in map(match_name, paths) if match}
    expected_pattern = expected.file_prefix, expected.named_files
    if expected_pattern in patterns:
        patterns = {expected_pattern}
    if len(patterns) != 1:
        return None
    prefix, named_files = patterns.pop()
    if named_files < expected.num_files:
        return None
    folders = {os.path.dirname(path) for path in paths} - {""}
    return replace(expected, file_prefix=prefix, named_files=named_files, num_subfolders=len(folders))


def _wrong_files_message(expected: Layout, paths: list[str]) -> str:
    """Return the message for a folder without files of the format: which files it holds, and how to read them."""
    extension, count = Counter(os.path.splitext(path)[1] or path for path in paths).most_common(1)[0]
    format_name = format_of_ending(extension.lstrip(".").lower())
    advice = f"dataset.format={format_name}" if format_name else "dataset.source=folder to read files of your own"
    return (
        f"{expected.folder} holds {count} {extension} file{'s' if count != 1 else ''}, none of "
        f".{expected.extension}: set {advice}, or dataset.data_folder to another folder"
    )


def wrong_sizes(path_of: Callable[[int], str], sizes: Sizes, storage: StorageBase) -> tuple[int, list[str]]:
    """Compare at most `SIZE_CHECKS` files with `sizes`; return how many, and messages on wrong ones. Raises OSError."""
    count = min(len(sizes), SIZE_CHECKS)
    random = np.random.default_rng(1)  # a fixed seed, so that every inspection checks the same files
    files = sorted(random.choice(len(sizes), count, replace=False).tolist()) if count else []
    mismatches = []
    for file, size in zip(files, storage.sizes(map(path_of, files)), strict=True):
        if size is None:
            mismatches.append(f"{path_of(file)} is missing")
        elif size != sizes[file]:
            mismatches.append(f"{path_of(file)} has {size} bytes, wanted {sizes[file]}")
    return count, mismatches


def sizes_on_disk(layout: Layout, storage: StorageBase, listing: Mapping[str, int | None] | None = None) -> Sizes:
    """Return the size of every file in use, from `listing` (`files_below`) or else looked up. Raises OSError."""
    if listing is None:  # one request to an object store lists 1000 sizes, or looks up one
        listing = files_below(layout.folder, storage, 1) if storage.is_remote else {}
    sizes = {name: listing.get(name) for name in map(layout.name, range(layout.num_files))}
    unknown = [name for name, size in sizes.items() if size is None]
    for name, size in zip(unknown, storage.sizes(f"{layout.folder}/{name}" for name in unknown), strict=True):
        if size is None:
            raise no_such_file(f"{layout.folder}/{name}")
        sizes[name] = size
    return np.array(list(sizes.values()), np.int64)
