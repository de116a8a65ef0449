"""Verifies a dataset: every byte of every file against what was generated, and its folders for foreign files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from datagen import manifest, thread_pool
from datagen.buffers import AlignedBuffer
from datagen.content import explain, find_stamps
from datagen.errors import DatasetError
from datagen.formats.format_base import FORMATS, SourceStream, opened_file, reading
from datagen.generate import CountingWriter, Files, Part, files_of
from datagen.groups import GroupFormat, open_groups, samples_of_columns
from datagen.registry import is_built_in
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.null import NullWriter
from datagen.storage.storage_base import FOLDERS, Bytes, Reader, StorageBase, StorageSpec, open_storage
from datagen.thread_pool import Progress, Tally

Kind = Literal["truncated", "changed", "swapped", "missing", "foreign", "unreadable"]


@dataclass(frozen=True)
class Damage:
    """One damaged, missing or foreign file."""

    severity: Literal["error", "warning"]
    path: str
    kind: Kind
    message: str  # what was found, at which offset, and what was expected


def verify(
    spec: DatasetSpec,
    storage: StorageSpec = FOLDERS,
    *,
    rank: int = 0,
    ranks: int = 1,
    threads: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> list[Damage]:
    """Compare the files i with i % ranks == rank with what was generated; rank 0 also looks for foreign files.

    Returns the damage found, sorted by path; an empty list means that every byte is right. Raises DatasetError: there
    is no manifest, so that the expected contents are unknown.
    """
    opened = open_storage(storage.buffered)
    existing = manifest.read(spec.data_folder, opened)
    if existing is None:
        raise DatasetError(
            f"{spec.data_folder} has no {manifest.MANIFEST_NAME}: dlemu did not make this dataset, "
            "so it can't know what the bytes should be"
        )
    format_name = existing.spec.format
    if format_name != spec.format and not is_built_in(FORMATS, format_name):
        raise DatasetError(
            f"{spec.data_folder} was made in format {format_name!r}, a custom module: if you trust it, name "
            f"it yourself with dataset.format={format_name}"
        )
    files = files_of(replace(existing.spec, data_folder=spec.data_folder))
    share = range(rank, len(files), ranks)
    tally = Tally(len(share), files.total_bytes(rank, ranks), exact=files.sizes is not None)
    checker = _Checker(files, opened, tally)
    thread_pool.run(checker.worker, share, tally, threads, progress)
    findings = checker.findings + (_foreign(files, opened) if rank == 0 else [])
    return sorted(findings, key=lambda finding: finding.path)


class _Checker:
    """Verifies files in several threads."""

    def __init__(self, files: Files, storage: StorageBase, tally: Tally) -> None:
        self.findings: list[Damage] = []
        self._files = files
        self._storage = storage
        self._tally = tally

    def worker(self) -> Callable[[int], None]:
        """Return a function that checks one file, with its own buffers; each thread calls this once."""
        generated, stored = AlignedBuffer(), AlignedBuffer()

        def check(running_index: int) -> None:
            for part in self._files.parts(running_index):
                self._check(running_index, part, generated, stored)
            self._tally.add(files=1)

        return check

    def _check(self, running_index: int, part: Part, generated: AlignedBuffer, stored: AlignedBuffer) -> None:
        path = part.path
        finding: Damage | None
        try:
            with reading(path):
                if next(iter(self._storage.sizes([path]))) is None:
                    finding = Damage("error", path, "missing", "there is no such file")
                elif part.size_bytes is not None:
                    finding = self._check_bytes(running_index, part, part.size_bytes, generated, stored)
                else:
                    finding = self._check_payload(running_index)
        except DatasetError as error:
            finding = Damage("error", path, "unreadable", str(error))
        if finding is not None:
            self.findings.append(finding)

    def _check_bytes(
        self, running_index: int, part: Part, size_bytes: int, generated: AlignedBuffer, stored: AlignedBuffer
    ) -> Damage | None:
        """Generate the file again, into a writer that compares instead of writing."""
        with contextlib.closing(self._storage.open(part.path)) as reader:
            comparison = CountingWriter(_Comparison(reader, stored), self._tally)
            try:
                part.write(comparison, generated)
            except _DifferenceError as difference:
                return self._damage(running_index, part, size_bytes, reader, difference.offset)
            if reader.size_bytes == comparison.position:
                return None
            offset = min(reader.size_bytes, comparison.position)
            return self._damage(running_index, part, size_bytes, reader, offset)

    def _damage(self, running_index: int, part: Part, size_bytes: int, reader: Reader, offset: int) -> Damage:
        """Return the kind of damage of a file that first differs at `offset`."""
        path, content = part.path, self._files.content
        if reader.size_bytes == size_bytes:
            message = f"it differs from what was generated, at offset {offset}"
            swapped = False
            if not part.is_side:
                swapped, words = explain(*_around(reader, offset), content, running_index)
                message += f": {words}, not of file {running_index}"
            return Damage("error", path, "swapped" if swapped else "changed", message)
        stamps = find_stamps(_around(reader, 0)[0])
        if stamps:
            stamp_offset, stamp = stamps[0]
            if stamp.file != running_index or stamp.seed_hash != content.seed_hash:
                message = f"at offset {stamp_offset} it begins as file number {stamp.file}, not {running_index}"
                return Damage("error", path, "swapped", message)
        message = f"it has {reader.size_bytes} bytes, wanted {size_bytes}; it is right up to offset {offset}"
        return Damage("error", path, "truncated" if reader.size_bytes < size_bytes else "changed", message)

    def _check_payload(self, running_index: int) -> Damage | None:
        """Read and compare the samples as a loader would: compressed bytes depend on the library's version."""
        files, path = self._files, self._files.path(running_index)
        checked_bytes, payload_bytes = 0, int(files.estimates[running_index])
        if isinstance(files.format, GroupFormat):
            pieces = self._group_values(running_index)
        else:
            pieces = self._sample_payloads(running_index, payload_bytes)
        for data, offset in pieces:
            index = files.content.first_difference(data, running_index, offset)
            if index is not None:
                swapped, words = explain(data, index, files.content, running_index)
                message = f"its payload differs from what was generated at offset {offset + index}: {words}"
                return Damage("error", path, "swapped" if swapped else "changed", message)
            checked_bytes += len(data)
            self._tally.add(size_bytes=len(data))
        if checked_bytes == payload_bytes:
            return None
        return Damage("error", path, "truncated", f"its samples have {checked_bytes} bytes, wanted {payload_bytes}")

    def _group_values(self, running_index: int) -> Iterator[tuple[memoryview, int]]:
        """Yield the values of a file of row groups, and their offset in the payload. Raises DatasetError."""
        groups_format, path = self._files.format, self._files.path(running_index)
        spec = manifest.without_read_flags(self._files.spec)
        assert isinstance(groups_format, GroupFormat)
        groups = open_groups(groups_format, path, spec, self._storage)
        with contextlib.closing(groups.source):
            if not groups.payload(0):
                raise DatasetError("its columns or row groups differ from those it was made with")
            for group in groups.groups_of(0, spec.num_samples_per_file):
                columns = groups_format.decode_group(SourceStream(groups.source), group, spec)
                for values in samples_of_columns(groups.payload(group), columns):
                    yield values.data, values.payload_offset

    def _sample_payloads(self, running_index: int, payload_bytes: int) -> Iterator[tuple[memoryview, int]]:
        """Yield the payload of each sample, and its offset, once for samples that share a payload."""
        path, samples = self._files.path(running_index), self._files.spec.num_samples_per_file
        yielded_bytes, offsets = 0, set()
        with opened_file(self._files.format, path, self._storage, samples) as opened:
            for index in range(samples):
                if yielded_bytes == payload_bytes:
                    return
                sample = opened.sample(index)
                data, offset = sample.plain_payload, sample.payload_offset
                if offset not in offsets:
                    offsets.add(offset)
                    yielded_bytes += len(data)
                    yield data, offset


class _DifferenceError(Exception):
    """The file differs, first at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Comparison(NullWriter):
    """A writer that compares the bytes to be written with an existing file."""

    def __init__(self, reader: Reader, buffer: AlignedBuffer) -> None:
        self._reader = reader
        self._buffer = buffer

    def write_at(self, data: Bytes, offset: int) -> None:
        view = self._buffer.view(len(data))
        got = self._reader.read_into(view, offset)
        stored, generated = np.frombuffer(view[:got], np.uint8), np.frombuffer(data, np.uint8)
        differs = stored != generated[:got]
        if differs.any():
            raise _DifferenceError(offset + int(differs.argmax()))
        if got < len(data):
            raise _DifferenceError(offset + got)


def _around(reader: Reader, offset: int) -> tuple[memoryview, int]:
    """Return bytes of a file around an offset, with the stamp of the block there, and the offset's index in them."""
    start = max(0, offset - BLOCK_BYTES)
    view = memoryview(bytearray(2 * BLOCK_BYTES))
    got = reader.read_into(view, start)
    return view[:got], offset - start


def _foreign(files: Files, storage: StorageBase) -> list[Damage]:
    """Find files in the dataset's folders that do not belong to it."""
    known = {part.path for i in range(len(files)) for part in files.parts(i)}
    folders = {files.train.folder, files.valid.folder, *files.folders()}
    known |= folders
    findings: list[Damage] = []
    for folder in sorted(folders):
        if not storage.is_folder(folder):
            continue
        try:
            with storage.entries(folder) as entries:
                unknown = [path for entry in entries if (path := f"{folder}/{entry.name}") not in known]
        except OSError as error:
            message = f"it can't be listed: {error.strerror or error}"
            findings.append(Damage("error", folder, "unreadable", message))
            continue
        findings += [Damage("warning", path, "foreign", "it does not belong to this dataset") for path in unknown]
    return findings
