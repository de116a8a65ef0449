"""Chooses the files of a user's folder that are the dataset, by their names: those of one kind and the training split.

A file's kind is the format that its extension belongs to, else the extension itself:

    photo.JPG -> jpeg    train.tfrecord-00000-of-00004 -> tfrecord    scan.nii.gz -> .nii.gz    README -> "" (none)
"""

from __future__ import annotations

import re
from collections import Counter

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
    r"(?:^|[/ ._\-\d])(?:(?P<training>train(?:ing)?)|val(?:id(?:ation)?)?|dev|test(?:ing)?|eval(?:uation)?)"
    r"(?=[/ ._\-\d]|$)",
    re.IGNORECASE,
)
"""The words by which Hugging Face's `datasets` recognises the split of a path, with no letters around."""


def choose_files(spec: DatasetSpec, listed: list[str]) -> tuple[str, list[str], list[str]]:
    """Choose among the files of a folder, given as sorted paths below it; return a format, its files' paths, and notes.

    Files of `spec.format` are chosen if any name shows that format. Else the most common kind decides: its files are
    chosen if a format reads that kind, else those of all common kinds: a label may lie beside each image.

    format  files                       -> chosen
    (none)  0.jpg 1.jpg labels.csv      -> jpeg  0.jpg 1.jpg
    (none)  0.csv 0.jpg 1.csv 1.jpg     -> jpeg  0.jpg 1.jpg                a table beside each file is its label
    (none)  0.mp4 0.srt 1.mp4 1.srt     -> raw   0.mp4 1.mp4                no format reads this kind
    raw     0.jpg 0.seg 1.jpg 1.seg     -> raw   0.jpg 0.seg 1.jpg 1.seg    raw reads any kind
    npz     0.dcm 1.dcm                 -> npz   0.dcm 1.dcm                the names show no other format
    npz     0.jpg 1.jpg                 -> jpeg  0.jpg 1.jpg                the caller refuses this
    """
    format_name = spec.format
    kinds = {path: kind_of(path) for path in listed}
    data = [path for path in listed if not path.lower().endswith(_COMPANIONS)] or listed
    counts = Counter(kinds[path] for path in data)
    most_common = max(counts, key=lambda kind: (counts[kind], kind != "csv"))
    most_files = counts[most_common]
    reads_any_kind = format_name in (RAW, *FLAT) or registry.is_dotted(format_name)
    if format_name and format_name in counts:
        chosen_kinds = {format_name}
    elif most_common in registry.names(FORMATS) and not reads_any_kind:
        format_name, chosen_kinds = most_common, {most_common}
    else:
        chosen_kinds = {kind for kind, files in counts.items() if files >= MIN_SHARE_OF_KIND * most_files}
    chosen = [path for path in data if kinds[path] in chosen_kinds]
    paths, notes = _training_split(chosen)
    if others := sorted(set(listed).difference(chosen)):
        of_each = Counter(extension_of(other) or "no ending" for other in others)
        shown = ", ".join(f"{extension} ({count})" for extension, count in of_each.most_common(SHOWN_NAMES))
        notes.insert(0, f"files of other kinds, which are not read: {shown}; dataset.format chooses")
    return format_name or RAW, paths, notes


def _training_split(paths: list[str]) -> tuple[list[str], list[str]]:
    """Return the files of the training split, and a note on the others; all files unless names show both.

    train2017/0.bmp val2017/0.bmp      -> train2017/0.bmp
    a/train-0.bmp a/dev-0.bmp          -> a/train-0.bmp
    train/car/0.bmp train/test/0.bmp   -> both: the first split in a path counts
    bus/0.bmp train/0.bmp van/0.bmp    -> all: no other split is named
    """
    splits = {path: match for path in paths if (match := _SPLIT.search(path))}
    training = [path for path, match in splits.items() if match["training"]]
    if len(training) in (0, len(splits)):
        return paths, []
    left_out = sorted(set(paths).difference(training))
    return training, [f"files of other splits, which are not read: {len(left_out)}, such as {left_out[0]}"]


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
