"""Where records lie in files whose headers had to be read for that: each file is read once, not by each process.

A reader that looks for headers makes requests that no training job makes, one for each record. Forked processes inherit
what is known; `KnownOffsets` carries it to others, in what is pickled for them (a job, a worker's `FetchSpec`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from datagen.formats.format_base import DamagedError, Source, SourceStream, damaged, no_such_record

Offsets = NDArray[np.int64]  # offset of each record, and the end of the last one
Version = tuple[str, int, int]  # a file as it is: path, bytes, and time of the last change in ns
OfFiles = Mapping[Version, Offsets]

_known: dict[Version, Offsets] = {}


HEADERS_AT_ONCE_BYTES = 32 << 10
"""What a request to an object store brings: headers of several small records, in about the time that one takes."""


def offsets_in(source: Source, records: int, read_headers: Callable[[BinaryIO], Sequence[int]]) -> Offsets:
    """Return the offsets of a file's first records; `read_headers` returns those of all if they are not known.

    Raises DatasetError: the file has fewer records.
    """
    known = known_offsets(source, records)
    if known is None:
        try:
            found = read_headers(io.BufferedReader(SourceStream(source), HEADERS_AT_ONCE_BYTES))
        except DamagedError as error:
            raise damaged(source.path, str(error), error.offset) from error
        known = _known[_version(source)] = np.array(found, np.int64)
        if len(known) <= records:
            raise no_such_record(source.path, len(known) - 1, len(known) - 1)
    return known[: records + 1]


def known_offsets(source: Source, records: int) -> Offsets | None:
    """Return the offsets of a file's first records; None if they are not known."""
    known = _known.get(_version(source)) if _known else None  # else each tar that is opened would cost a stat
    return None if known is None or len(known) <= records else known[: records + 1]


def _version(source: Source) -> Version:
    try:
        return version_of(source.path, os.stat(source.path))
    except OSError:
        return object_version(source.path, source.size_bytes)


def learn_offsets(file: Version, offsets: Sequence[int]) -> None:
    """Keep the offsets of a file whose headers were read for another reason."""
    _known[file] = np.array(offsets, np.int64)


def version_of(path: str, status: os.stat_result) -> Version:
    """Return the key of what is known of a file until it changes."""
    return path, status.st_size, status.st_mtime_ns


def object_version(path: str, size_bytes: int) -> Version:
    """Return the key of an object: reading it finds out if another one as large has replaced it."""
    return path, size_bytes, 0


@dataclass(frozen=True, eq=False)
class KnownOffsets:
    """Offsets that are known in the process that unpickles this, too."""

    of_files: OfFiles

    @classmethod
    def below(cls, *folders: str) -> KnownOffsets:
        """Return the offsets known so far of the files in some folders."""
        paths = tuple(f"{folder}/" for folder in folders)
        return cls({file: offsets for file, offsets in _known.items() if file[0].startswith(paths)})

    def __reduce__(self) -> tuple[Callable[[OfFiles], KnownOffsets], tuple[OfFiles]]:
        return _learn, (self.of_files,)


def _learn(of_files: OfFiles) -> KnownOffsets:
    _known.update(of_files)
    return KnownOffsets(of_files)


NO_OFFSETS = KnownOffsets({})
