"""The manifest of a packed set: a folder of packed files, each with the number of its samples and a checksum.

While packing runs, .packed.jsonl has a first line with the settings and a line for each finished file, so an
interrupted packing can resume; packed.json is written when the last file is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from isal import isal_zlib

from datagen.errors import ServerError
from datagen.formats.format_base import FormatBase, SideFile
from datagen.layout import Layout
from datagen.manifest import PACKED_NAME
from datagen.regular import MOST_COLLECTED_BYTES
from datagen.settings import build
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import leads_elsewhere, read_whole, write_whole
from datagen.verify import Damage, Kind
from dlemu.extend import AlignedBuffer, DatasetError, StorageBase, UserError

JOURNAL_NAME = ".packed.jsonl"
SCHEMA_VERSION = 1
MAX_FILES = 10**7  # a manifest may come from someone else: a huge number in it must not exhaust memory
_CHUNK_BYTES = 8 << 20  # per read call: large enough to amortise the call, small compared with a host's memory


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """An image that could not be packed."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """One finished packed file."""

    number: int
    samples: int
    source_bytes: int
    """Bytes of the image files that it was made from."""
    bytes: int
    crc32: int
    """CRC-32 of the whole file."""
    payload_bytes: int
    """Bytes of the samples, without what the format adds."""
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """The manifest: settings and finished files of one folder."""

    about: dict[str, Any]
    """Name -> value of the settings that determine the files' content; resuming with others is refused."""
    format: str
    ending: str
    files: int
    images_per_file: int
    complete: bool = False
    made: tuple[PackedFile, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def samples(self) -> int:
        """Return the number of samples in all finished files."""
        return sum(file.samples for file in self.made)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Return the images that were left out because they could not be decoded."""
        return tuple(skipped for file in self.made for skipped in file.skipped)

    def missing(self) -> list[int]:
        """Return the numbers of the files that are still to be made."""
        finished = {file.number for file in self.made}
        return [number for number in range(self.files) if number not in finished]

    def training_shape(self) -> tuple[int, int]:
        """Return (files, samples per file) for training, which reads the same number of samples from each file.

        That number is the smallest of any file; the last file is left out if it has fewer samples than all others.
        """
        counts = [file.samples for file in sorted(self.made, key=lambda file: file.number)]
        used = counts[:-1] if len(counts) > 1 and counts[-1] < min(counts[:-1]) else counts
        return len(used), min(used, default=0)


def layout_of(folder: str, packed: PackedSet) -> Layout:
    """Return the paths of the packed files: named like a dataset's, so that a training run finds them."""
    return Layout(
        folder=os.path.join(folder, "train"),
        split="train",
        num_files=packed.files,
        num_samples_per_file=packed.images_per_file,
        extension=packed.ending,
        named_files=packed.files,
    )


def read_set(folder: str, storage: StorageBase) -> PackedSet | None:
    """Return the manifest of a folder, also of an interrupted packing; None if there is none.

    Raises DatasetError for a damaged one, UserError for one that can't be read.
    """
    for name in (PACKED_NAME, JOURNAL_NAME):
        path = os.path.join(folder, name)
        try:
            content = bytes(read_whole(storage, path, MOST_COLLECTED_BYTES))
            head, *lines = content.split(b"\n") if name == JOURNAL_NAME else [content]
            values = json.loads(head)
            version = values.get("schema_version")
            if version != SCHEMA_VERSION:
                raise DatasetError(
                    f"{path} has schema_version {version!r}, wanted {SCHEMA_VERSION}: another version of dlemu packed "
                    "it; pack into an empty folder"
                )
            packed = build(PackedSet, values)
            _check_limits(packed)
        except FileNotFoundError:
            continue
        except NotADirectoryError as error:
            raise DatasetError(f"{folder} is not a folder: set target to a new one, or to a packed set") from error
        except ServerError:
            raise
        except OSError as error:
            raise UserError(f"{path} can't be read: {error.strerror or error}; wanted a folder that can be") from error
        except (ValueError, AttributeError, UserError) as error:
            raise DatasetError(f"{path} is damaged ({error}): delete the folder, and pack again") from error
        return replace(packed, made=(*packed.made, *_files_in_journal(lines)))
    return None


def _check_limits(packed: PackedSet) -> None:
    """Raise ValueError for a manifest that dlemu never writes: paths outside its folder, or impossible numbers."""
    if os.sep in packed.ending or not 0 < packed.files <= MAX_FILES or packed.images_per_file < 1:
        raise ValueError(f"{packed.files} files of {packed.images_per_file} images, called .{packed.ending}")


def _files_in_journal(lines: list[bytes]) -> Iterator[PackedFile]:
    """Yield the finished files; the last line, if packing was killed while writing it, may be incomplete."""
    for line in lines:
        try:
            yield build(PackedFile, json.loads(line))
        except (ValueError, UserError):
            continue


def write_set(folder: str, packed: PackedSet, storage: StorageBase) -> None:
    """Write packed.json, synced to the device before it is renamed into place. Raises OSError."""
    data = (json.dumps(asdict(packed), indent=1) + "\n").encode()
    write_whole(storage, os.path.join(folder, PACKED_NAME), data, sync=True)


def remove_set(folder: str, packed_format: type[FormatBase], storage: StorageBase) -> None:
    """Remove the files of the packed set in a folder, and the folders that are empty afterwards.

    Does nothing if there is no valid manifest, or if a symbolic link leads out of the folder. Raises UserError if some
    files can't be removed; the manifest then stays, by which a later call finds them.
    """
    try:
        packed = read_set(folder, storage)
    except DatasetError:
        return
    if packed is None:
        return
    layout, sides = layout_of(folder, packed), packed_format().sides
    folders = folders_of(layout, sides)
    if any(leads_elsewhere(folder, made, storage) for made in folders):
        return
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            storage.remove_unfinished(layout.folder)
        numbers = [number for number in _existing_numbers(layout, storage) if number < packed.files]
        paths = [layout.path(number) for number in numbers]
        paths += [side.path(layout, number) for side in sides for number in numbers]
        _remove_files(paths, storage)
        # last: as long as other files are left, the folder is recognised as a packed set
        _remove_files([os.path.join(folder, name) for name in (PACKED_NAME, JOURNAL_NAME)], storage)
    except OSError as error:
        raise UserError(f"{error.filename or layout.folder} can't be removed: {error.strerror or error}") from error
    for made in (*folders, *(os.path.dirname(made) for made in folders), folder):
        with contextlib.suppress(OSError):
            storage.remove_folder(made)


def _remove_files(paths: Sequence[str], storage: StorageBase) -> None:
    """Remove those of the files that exist and can be removed; raises the first OSError if others stay."""
    failures = []
    for path in paths:
        try:
            storage.remove(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def folders_of(layout: Layout, sides: tuple[SideFile, ...]) -> list[str]:
    """Return the folders that hold the files of a packed set, side files included."""
    return [*(made for side in sides if (made := side.folder(layout)) is not None), layout.folder]


def _existing_numbers(layout: Layout, storage: StorageBase) -> Iterator[int]:
    """Yield the numbers of the packed files that exist, recognised by the names that the layout gives them."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), storage.entries(layout.folder) as entries:
        for entry in entries:
            match = re.search(r"_(\d+)_of_", entry.name)
            if match and entry.name == layout.name(int(match[1])):
                yield int(match[1])


def training_spec(folder: str, packed: PackedSet) -> DatasetSpec:
    """Return the dataset settings with which a training run reads a packed set that has samples."""
    files, samples = packed.training_shape()
    payload = sum(file.payload_bytes for file in packed.made)
    return DatasetSpec(
        data_folder=folder,
        format=packed.format,
        num_files_train=files,
        num_samples_per_file=samples,
        record_length_bytes=max(1, payload // packed.samples),
    )


def verify_set(folder: str, storage: StorageBase) -> list[Damage]:
    """Read every file of a packed set and compare its size and CRC-32 with the manifest.

    Raises DatasetError if the folder has no manifest.
    """
    packed = read_set(folder, storage)
    if packed is None:
        raise DatasetError(f"{folder} has no {PACKED_NAME}: `dlemu pack` wrote nothing there")
    layout, buffer, findings = layout_of(folder, packed), AlignedBuffer(), []
    for number in packed.missing():
        findings.append(Damage("error", layout.path(number), "missing", "it was never finished: pack again"))
    for file in (file for file in packed.made if file.samples):
        path = layout.path(file.number)
        try:
            size, crc = _size_and_crc(path, buffer, storage, file.bytes)
        except FileNotFoundError:
            findings.append(Damage("error", path, "missing", "there is no such file"))
            continue
        except OSError as error:
            findings.append(Damage("error", path, "unreadable", f"it can't be read: {error.strerror or error}"))
            continue
        if size != file.bytes:
            kind: Kind = "truncated" if size < file.bytes else "changed"
            findings.append(Damage("error", path, kind, f"it has {size} bytes, wanted {file.bytes}"))
        elif crc != file.crc32:
            findings.append(Damage("error", path, "changed", "its bytes are not those that were written (CRC32)"))
    return sorted(findings, key=lambda finding: finding.path)


def _size_and_crc(path: str, buffer: AlignedBuffer, storage: StorageBase, wanted: int) -> tuple[int, int]:
    """Return a file's size and CRC-32; a file of another size than `wanted` is not read, and gives a CRC of 0."""
    reader = storage.open_received(path)
    try:
        if reader.size_bytes != wanted:
            return reader.size_bytes, 0
        crc, at = 0, 0
        while at < reader.size_bytes:
            got = reader.read_into(buffer.view(_CHUNK_BYTES), at)
            if not got:
                break
            crc = isal_zlib.crc32(buffer.view(_CHUNK_BYTES)[:got], crc)
            at += got
        return at, crc
    finally:
        reader.close()
