"""Verifies a dataset: generates every file again, and compares each byte with the file on storage."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import numpy as np

from datagen import manifest, thread_pool
from datagen.buffers import AlignedBuffer
from datagen.content import explain, find_stamps
from datagen.errors import DatasetError
from datagen.formats.format_base import FORMATS, reading
from datagen.generate import Files, OutputFile, files_of
from datagen.registry import is_built_in
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.null import NullWriter
from datagen.storage.storage_base import FOLDERS, Bytes, Reader, StorageBase, StorageSpec, open_storage
from datagen.thread_pool import OnProgress, Tally, Worker


@dataclass(frozen=True)
class Damage:
    """One damaged or missing file."""

    path: str
    message: str  # what is in the file, at which offset, and what was expected


def verify(
    spec: DatasetSpec,
    storage: StorageSpec = FOLDERS,
    *,
    rank: int = 0,
    ranks: int = 1,
    threads: int = 1,
    progress: OnProgress | None = None,
) -> list[Damage]:
    """Compare the files i with i % ranks == rank with their content generated again.

    Returns the damage, sorted by path. Raises DatasetError if the manifest is missing, or names a module not in `spec`.
    """
    backend = open_storage(storage.buffered)
    existing = manifest.read(spec.data_folder, backend)
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
    tally = Tally(len(share), files.total_bytes(rank, ranks), exact=files.exact)
    checker = _Checker(files, backend, tally)
    thread_pool.run(checker.worker, share, tally, threads, progress)
    return sorted(checker.damage, key=lambda damage: damage.path)


@dataclass
class _Checker:
    files: Files
    storage: StorageBase
    tally: Tally
    damage: list[Damage] = field(default_factory=list)

    def worker(self) -> Worker:
        """Return a function that checks a data file and its side files. Each thread has one, with its own buffers."""
        generated, stored = AlignedBuffer(), AlignedBuffer()

        def check(running_index: int) -> None:
            for output in self.files.outputs(running_index):
                try:
                    with reading(output.path):
                        message = self._compare(running_index, output, generated, stored)
                except DatasetError as error:
                    message = str(error)
                if message:
                    self.damage.append(Damage(output.path, message))
            self.tally.add(files=1)

        return check

    def _compare(self, running_index: int, output: OutputFile, generated: AlignedBuffer, stored: AlignedBuffer) -> str:
        """Generate the file again, into a writer that compares instead of writing; return what differs, or ''."""
        if next(iter(self.storage.sizes([output.path]))) is None:
            return "there is no such file"
        with contextlib.closing(self.storage.open(output.path)) as reader:
            writer = _ComparingWriter(reader, stored)
            writer.on_advance = self.tally.add
            try:
                output.write(writer, generated)
            except _DifferenceError as difference:
                (offset,) = difference.args
            else:
                if reader.size_bytes == writer.position:
                    return ""
                offset = min(reader.size_bytes, writer.position)
            message = self._explain(running_index, output, reader, offset)
        if self.files.spec.compression != "none":
            message += "; the version of the library that compresses decides on its bytes, too"
        return message

    def _explain(self, running_index: int, output: OutputFile, reader: Reader, offset: int) -> str:
        """Return what is wrong with a file that first differs at `offset`."""
        content = self.files.content
        if not output.exact or output.size_bytes == reader.size_bytes:
            message = f"it differs from what was generated, at offset {offset}"
            if output.path == output.data_path:
                explanation = explain(*_around(reader, offset), content, running_index)
                message += f": {explanation}, not of file {running_index}"
            return message
        if stamps := find_stamps(_around(reader, 0)[0]):
            stamp_offset, stamp = stamps[0]
            if stamp.file != running_index or stamp.seed_hash != content.seed_hash:
                return f"at offset {stamp_offset} it begins as file number {stamp.file}, not {running_index}"
        return f"it has {reader.size_bytes} bytes, wanted {output.size_bytes}; it is right up to offset {offset}"


class _DifferenceError(Exception):
    """The file differs from the generated content; the argument is the offset of the first difference."""


class _ComparingWriter(NullWriter):
    """A writer that compares the bytes to be written with an existing file. Raises _DifferenceError."""

    def __init__(self, reader: Reader, buffer: AlignedBuffer) -> None:
        self._reader = reader
        self._buffer = buffer

    def write_at(self, data: Bytes, offset: int) -> None:
        view = self._buffer.view(len(data))
        filled = self._reader.read_into(view, offset)
        stored, generated = np.frombuffer(view[:filled], np.uint8), np.frombuffer(data, np.uint8)
        differs = stored != generated[:filled]
        if differs.any():
            raise _DifferenceError(offset + int(differs.argmax()))
        if filled < len(data):
            raise _DifferenceError(offset + filled)


def _around(reader: Reader, offset: int) -> tuple[memoryview, int]:
    """Return bytes of a file around an offset, with the stamp of the block there, and the offset's index in them."""
    start = max(0, offset - BLOCK_BYTES)
    view = memoryview(bytearray(2 * BLOCK_BYTES))
    return view[: reader.read_into(view, start)], offset - start
