"""Chooses the files of a user's folder that are the dataset, by their names: those of one format and training split.

A file's kind is the format that its extension belongs to, else the extension itself:

    photo.JPG -> jpeg    train.tfrecord-00000-of-00004 -> tfrecord    scan.nii.gz -> .nii.gz    README -> "" (none)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from datagen import registry
from datagen.formats.format_base import FORMATS
from datagen.scan import SHOWN_NAMES, format_of_ending
from datagen.spec import DatasetSpec

RAW = "raw"
FLAT = ("indexed_binary", "mmap_indexed_binary")
"""Formats without framing, such as tokens: a user's files are cut into records of `record_length_bytes`."""
MIN_SHARE_OF_KIND = 0.5  # a kind is common if it has this share of the files of the most common kind
_COMPANIONS = (
    *(".idx", ".index", ".json", ".txt", ".md", ".xml", ".yaml", ".srt", ".vtt", ".pkl", ".model"),
    *("lock.mdb", "readme", "license"),
)
"""Ends of the names of indexes, labels, vocabularies and the like: not data, unless the folder has nothing else."""
_SHARD = re.compile(r"(?:[-_.]\d+(?:[-_]of[-_]\d+)?)+$")  # the end of part-00000 and train.tfrecord-00000-of-00004
_EXTENSION = re.compile(r"[^/](\.[a-z][^./]*\.(?:gz|zst|bz2|xz|lz4)|\.[^./]*)$")
_SPLIT = re.compile(
    r"(?:^|[/ ._\-\d])(?:(?P<training>train(?:ing)?)|(?P<validation>val(?:id(?:ation)?)?|dev)"
    r"|(?P<test>test(?:ing)?|eval(?:uation)?))(?=[/ ._\-\d]|$)",
    re.IGNORECASE,
)
"""The words by which Hugging Face's `datasets` recognises the split of a path, with no letters around."""


class Choice(NamedTuple):
    """The files to read, and the format to read them by."""

    format_name: str
    paths: list[str]  # below the folder
    notes: list[str]  # for the user: which files are not read


def choose_files(spec: DatasetSpec, listed: list[str], bytes_of: Callable[[list[str]], float]) -> Choice:
    """Choose among the files of a folder, given as sorted paths below it; `bytes_of` returns the bytes of such files.

    Files of `spec.format` are chosen if any name shows that format. Else the kind with the most bytes is chosen among
    the common kinds, which have at least half as many files as the most common one: a label may lie beside each image.

        format  files                       -> chosen
        (none)  0.jpg 1.jpg labels.csv      -> jpeg  0.jpg 1.jpg
        (none)  0.mp4 0.srt 1.mp4 1.srt     -> raw   0.mp4 1.mp4                no format reads this kind
        raw     0.jpg 0.txt 1.jpg 1.txt     -> raw   0.jpg 0.txt 1.jpg 1.txt    raw reads any kind: all common ones
        npz     0.dcm 1.dcm                 -> npz   0.dcm 1.dcm                the names show no other format
        npz     0.jpg 1.jpg                 -> jpeg  0.jpg 1.jpg                the caller may refuse this
    """
    requested = spec.format
    formats = {*registry.names(FORMATS)} - {RAW}
    kinds = {path: kind_of(path) for path in listed}
    data = [path for path in listed if not path.lower().endswith(_COMPANIONS)] or listed
    common = _common_kinds(data, kinds)
    chosen = [path for path in data if requested and kinds[path] == requested]
    format_name = requested
    if not chosen:
        largest_kind = max(common, key=lambda kind: bytes_of(common[kind]))
        chosen = common[largest_kind]
        # An earlier inspection that chose this kind alone put its number of files into the settings: keep its choice
        num_training = len(_training_split(chosen, spec.data_folder)[0])
        is_chosen = requested == RAW and 0 < spec.num_files_train <= num_training
        reads_any_kind = requested in (RAW, *FLAT) or registry.is_dotted(requested)
        if not reads_any_kind and (not requested or largest_kind in formats):
            format_name = largest_kind if largest_kind in formats else RAW
        elif not is_chosen:
            if requested == RAW and largest_kind in formats:
                data = [path for path in listed if kinds[path] != ".idx"]  # labels are read with the samples
            chosen = sorted(path for paths in _common_kinds(data, kinds).values() for path in paths)
    paths, notes = _training_split(chosen, spec.data_folder)
    if others := sorted(set(listed).difference(chosen)):
        counts = Counter(extension_of(other) or "no ending" for other in others)
        shown = ", ".join(f"{extension} ({count})" for extension, count in counts.most_common(SHOWN_NAMES))
        verb = "files are" if len(others) != 1 else "file is"
        note = f"{len(others)} {verb} of other kinds and not read: {shown}"
        if other_formats := {kinds[other] for other in others} & formats & common.keys():
            note += f"; to read others, set dataset.format={' or '.join(sorted(other_formats))}"
        notes.insert(0, note)
    return Choice(format_name, paths, notes)


def _common_kinds(paths: list[str], kinds: dict[str, str]) -> dict[str, list[str]]:
    """Return the paths of each kind that is at least half as common as the most common one."""
    paths_of: dict[str, list[str]] = {}
    for path in paths:
        paths_of.setdefault(kinds[path], []).append(path)
    fewest = MIN_SHARE_OF_KIND * max(map(len, paths_of.values()))
    return {kind: of_kind for kind, of_kind in paths_of.items() if len(of_kind) >= fewest}


def _training_split(paths: list[str], data_folder: str) -> tuple[list[str], list[str]]:
    """Return the files of the training split, and a note on the others; all files if their paths show no splits.

    train2017/0.bmp val2017/0.bmp      -> train2017/0.bmp
    a/train-0.bmp a/dev-0.bmp          -> a/train-0.bmp
    train/0.bmp more/0.bmp             -> train/0.bmp
    train/car/0.bmp train/test/0.bmp   -> both: the first split in a path counts
    bus/0.bmp train/0.bmp van/0.bmp    -> all: more folders without a split than with one, so all are classes
    """
    matches = {path: match for path in paths if (match := _SPLIT.search(path))}
    training = [path for path, match in matches.items() if match["training"]]
    left_out = sorted(set(paths).difference(training))
    if not training or not left_out:
        return paths, []
    if len(training) == len(matches) and not any(path.startswith("train/") for path in training):
        return paths, []
    depth = min(path.count("/", 0, match.end()) for path, match in matches.items())
    branches = {path: "/".join(path.split("/")[: depth + 1]) for path in paths}  # up to the level that names splits
    splits_are_folders = all("/" in path[match.end() :] for path, match in matches.items())
    classes = {branch for path, branch in branches.items() if path not in matches}
    if splits_are_folders:
        classes.difference_update(paths)  # files beside the folders are no classes
    if len(classes) > len({path[: match.end()] for path, match in matches.items()}):
        return paths, []
    splits = {(matches[path].lastgroup or "") if path in matches else "other" for path in left_out}
    plural = "s" if len(left_out) != 1 else ""
    note = f"{len(left_out)} {' and '.join(sorted(splits, reverse=True))} file{plural} left out: "
    folders = [branches[path] for path in left_out if branches[path] != path] if splits_are_folders else []
    if folders:
        read = "them" if all(branches[path] == folders[0] for path in left_out) else "its part"
        note += f"dataset.data_folder={data_folder.rstrip('/')}/{folders[0]} reads {read}"
    else:
        note += "in a folder of their own, dataset.data_folder reads them"
    return training, [note]


def kind_of(path: str) -> str:
    """Return the format that a path indicates, else its extension with the dot; empty without an extension."""
    extension = extension_of(path)
    format_name = format_of_ending(extension[1:])
    if format_name and format_name != RAW:
        return format_name
    return "tfrecord" if ".tfrecord" in path and not path.endswith(_COMPANIONS) else extension


def extension_of(path: str) -> str:
    """Return the extension in lower case, `.tar.gz` for a compressed tar file, without the number of a shard."""
    match = _EXTENSION.search(_SHARD.sub("", path.lower()))
    return match[1] if match else ""
