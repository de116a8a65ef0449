"""What is in a split's folder: files by their names, and whether their sizes are what the law of sizes says."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.errors import DatasetError
from datagen.layout import Layout
from datagen.spec import Split
from datagen.storage.storage_base import Entry, StorageBase

SHOWN_NAMES = 3
"""Names that a message shows of many."""
SIZE_CHECKS = 4096
"""Files of a dataset whose size is looked up, drawn by a seed; all the others are known by arithmetic."""
SIZE_CHECK_SEED = 1  # fixed, so that two looks at a folder check the same files; its value does not matter
_LISTED_AT_ONCE = 1 << 16  # bounds the memory for names, whatever the folder holds
_ENDINGS = {"jpeg": (".jpeg", ".jpg"), "tiff": (".tiff", ".tif")}
"""Extension -> what others' files end in beside it; all in any case: `.JPEG` is ImageNet's."""
FORMAT_OF_ENDING = {"jpg": "jpeg", "tif": "tiff", "tar": "webdataset", "h5": "hdf5", "tfrecords": "tfrecord"}
"""Ending that is no format's name -> the format."""


_KEYS: dict[Split, str] = {"train": "train", "valid": "eval"}
"""Split -> the end of the key that says how many files it has."""


def has_ending(name: str, extension: str) -> bool:
    """Return whether a file's name says that it is of the format with this extension."""
    return name.lower().endswith(_ENDINGS.get(extension, (f".{extension}",)))


@dataclass(frozen=True)
class Scan:
    """The files below one split's folder, at most one folder down."""

    names: list[str]
    """Paths below the folder of those with the wanted extension, in order of their base names."""
    other_extensions: Counter[str]
    num_subfolders: int


def scan(folder: str, extension: str, storage: StorageBase, without: str = "") -> Scan:
    """List a split's folder; one that does not exist is empty.

    Hidden names, and the sub-folder `without`, are passed over. Raises OSError.
    """
    names: list[str] = []
    others: Counter[str] = Counter()
    subfolders = 0
    try:
        with storage.entries(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == without:
                    continue
                if entry.is_dir():
                    subfolders += 1
                    below = [f"{entry.name}/{name}" for name in _visible_names(f"{folder}/{entry.name}", storage)]
                else:
                    below = [entry.name]
                _sort_out(below, extension, names, others)
    except FileNotFoundError:
        return Scan([], Counter(), 0)
    names.sort(key=lambda name: name.rpartition("/")[2])
    return Scan(names, others, subfolders)


def _visible_names(folder: str, storage: StorageBase) -> list[str]:
    with storage.entries(folder) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".")]


def _sort_out(listed: list[str], extension: str, names: list[str], others: Counter[str]) -> None:
    for name in listed:
        if has_ending(name, extension):
            names.append(name)
        else:
            others[os.path.splitext(name)[1] or name] += 1


def named_as_there(asked: Layout, storage: StorageBase) -> Layout:
    """Return the layout that made the name of a file found first; the one requested when that follows no rule.

    Most often it made all the others too, which `count_ruled` finds sooner than `scan` lists a million. Raises OSError.
    """
    subfolders: list[str] = []
    try:
        with storage.entries(asked.folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    subfolders.append(f"{asked.folder}/{entry.name}")
                elif has_ending(entry.name, asked.extension):
                    return asked if subfolders else _ruled(Scan([entry.name], Counter(), 0), asked) or asked
        names = _visible_names(subfolders[0], storage)[:1] if subfolders else []
    except FileNotFoundError:
        return asked
    return _ruled(Scan(names, Counter(), len(subfolders)), asked) or asked


def count_ruled(layout: Layout, storage: StorageBase, *, alone: bool = False) -> int | None:
    """Return how many files of the layout's own names are there, or None when one of those in use is missing.

    With `alone` also when others of its extension or further folders are beside them.

    Names are taken apart many at a time and a byte is kept for each file, so that a million files cost less than a
    second and a megabyte; `scan` and `recognise` are for folders that are not as they should be. Raises OSError.
    """
    if layout.named_files < layout.num_files:
        return None
    listed = np.zeros(layout.named_files, np.bool_)
    folders = layout.folders()
    for place, folder in enumerate(folders):
        try:
            with storage.entries(folder) as entries:
                rest = iter(entries)
                while some := list(itertools.islice(rest, _LISTED_AT_ONCE)):
                    files = _numbers([entry.name for entry in some], layout)
                    ours = (files >= 0) & (files < layout.named_files) & (files % len(folders) == place)
                    listed[files[ours]] = True
                    others = (some[at] for at in np.flatnonzero(~ours).tolist()) if alone else ()
                    if any(_may_hold_samples(entry, layout) for entry in others):
                        return None
        except FileNotFoundError:
            return None
    return int(listed.sum()) if listed[: layout.num_files].all() else None


def _numbers(names: list[str], layout: Layout) -> NDArray[np.int64]:
    """Return the file's number of each name by the layout's rule, -1 of any other name."""
    prefix, ending, digits = f"{layout.file_prefix}_", layout.ruled_ending, len(str(layout.named_files))
    width = len(prefix) + digits + len(ending)
    text = "".join(names)
    if set(map(len, names)) != {width} or not text.isascii():
        numbered = _numbered(layout)
        return np.array([int(match[1]) if (match := numbered(name)) else -1 for name in names], np.int64)
    letters = np.frombuffer(text.encode(), np.uint8).reshape(len(names), width)
    values = letters[:, len(prefix) : len(prefix) + digits].astype(np.int64) - ord("0")
    is_ruled = ((values >= 0) & (values <= 9)).all(axis=1)
    for part, wanted in ((letters[:, : len(prefix)], prefix), (letters[:, -len(ending) :], ending)):
        is_ruled &= (part == np.frombuffer(wanted.encode(), np.uint8)).all(axis=1) if wanted.isascii() else False
    return np.where(is_ruled, values @ 10 ** np.arange(digits - 1, -1, -1), -1)


def _may_hold_samples(entry: Entry, layout: Layout) -> bool:
    return not entry.name.startswith(".") and (has_ending(entry.name, layout.extension) or entry.is_dir())


def _numbered(layout: Layout) -> Callable[[str], re.Match[str] | None]:
    """Return what takes the file's number, in a group, out of a name by the layout's rule."""
    digits = len(str(layout.named_files))
    return re.compile(rf"{re.escape(layout.file_prefix)}_([0-9]{{{digits}}}){re.escape(layout.ruled_ending)}").fullmatch


def recognise(scanned: Scan, asked: Layout, advice: object) -> tuple[Layout, list[str]]:
    """Return the layout of the files found, holding as many as requested, and notes.

    Names of DLIO's rule give a layout by arithmetic, `_of_N` with an N of its own included; other names a sorted list.

    Raises:
        DatasetError: fewer files than requested, or some of them missing.
    """
    wanted = asked.num_files
    if len(scanned.names) < wanted and not _states_more(scanned, asked):
        raise DatasetError(_incomplete(asked, scanned, advice))
    ruled = _ruled(scanned, asked)
    if ruled is None:
        return _listed(scanned, asked, "their names do not follow one pattern, so they are taken in order of name")
    there = set(scanned.names)
    missing = [name for name in map(ruled.name, range(wanted)) if name not in there]
    if not missing:
        return ruled, surplus(ruled, len(scanned.names))
    base_names = {name.rpartition("/")[2] for name in there}
    lost = [name for name in missing if name.rpartition("/")[2] not in base_names]
    if lost:
        raise DatasetError(_incomplete(asked, scanned, advice, lost))
    return _listed(scanned, asked, "their sub-folders do not follow the pattern, so they are taken in order of name")


def _states_more(scanned: Scan, asked: Layout) -> bool:
    """Return whether some of the files requested are missing from a set that had enough of them."""
    ruled = _ruled(scanned, asked)
    return ruled is not None and ruled.named_files >= asked.num_files


def _ruled(scanned: Scan, asked: Layout) -> Layout | None:
    """Return the layout that most likely made these names: the one requested, or the only one there is."""
    rule = re.compile(rf"(?:.*/)?(.+)_\d+_of_(\d+)\.{re.escape(asked.extension)}")
    matches = map(rule.fullmatch, scanned.names)
    sets = {(match[1], int(match[2])) for match in matches if match}
    mine = (asked.file_prefix, asked.named_files)
    if mine not in sets:
        if len(sets) != 1:
            return None
        mine = sets.pop()
    prefix, named_files = mine
    if named_files < asked.num_files:
        return None
    return replace(asked, file_prefix=prefix, named_files=named_files, num_subfolders=scanned.num_subfolders)


def _listed(scanned: Scan, asked: Layout, why: str) -> tuple[Layout, list[str]]:
    layout = replace(asked, names=tuple(scanned.names[: asked.num_files]))
    return layout, [f"{asked.folder}: {len(scanned.names)} files; {why}"]


def surplus(layout: Layout, there: int) -> list[str]:
    """Return a note when more files are there than are used."""
    if there <= layout.num_files:
        return []
    return [f"{layout.folder} holds {there} files; the first {layout.num_files} by name are used"]


def _incomplete(asked: Layout, scanned: Scan, advice: object, missing: list[str] | None = None) -> str:
    there, wanted = len(scanned.names), asked.num_files
    seen = f"{asked.folder} holds {there} {asked.extension} file{'s' * (there != 1)}"
    folders = scanned.num_subfolders
    seen += f" in {folders} folder{'s' * (folders != 1)}" if folders and there else ""
    if missing is None and there and _ruled(scanned, replace(asked, num_files=0)) is None:
        first = os.path.basename(scanned.names[0])
        return (
            f"{seen}, such as {first}, and {wanted} are requested: to use what is there, set "
            f"dataset.num_files_{_KEYS[asked.split]}={there}"
        )
    if missing is None:
        found = set(scanned.names)
        missing = [name for name in map(asked.name, range(wanted)) if name not in found]
    shown = ", ".join(missing[:SHOWN_NAMES]) + (", ..." if len(missing) > SHOWN_NAMES else "")
    return f"{seen}, {wanted} are requested: {len(missing)} missing ({shown}). {advice}"


def other_files(asked: Layout, scanned: Scan) -> str:
    """Return which other files are there where none has the format's extension, and what reads them."""
    extension, count = scanned.other_extensions.most_common(1)[0]
    ending = extension.lstrip(".").lower()
    name = FORMAT_OF_ENDING.get(ending, ending)
    known = name in registry.names("datagen.formats")
    none = "no format of dlemu reads these; set"
    if ending == "bin":
        none = "to read your own tokens set dataset.source=folder dataset.format=mmap_indexed_binary; else set"
    what = f"set dataset.format={name}, or" if known else none
    seen = f"{asked.folder} holds {count} {extension} file{'s' * (count != 1)}, none of .{asked.extension}"
    return f"{seen}: {what} dataset.data_folder to another folder"


def wrong_sizes(path: Callable[[int], str], sizes: NDArray[np.int64], storage: StorageBase) -> tuple[int, list[str]]:
    """Look up the sizes of at most 4096 files; return how many were looked up, and a message for each wrong one.

    `path` gives the path of a file of which `sizes` says how many bytes it should have.

    Raises OSError.
    """
    count = min(len(sizes), SIZE_CHECKS)
    random = np.random.default_rng(SIZE_CHECK_SEED)
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
    """Look up the size of every file in use. Raises OSError."""
    paths = map(layout.path, range(layout.num_files))
    sizes = np.empty(layout.num_files, np.int64)
    for file, size in enumerate(storage.sizes(paths)):
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), layout.path(file))
        sizes[file] = size
    return sizes
