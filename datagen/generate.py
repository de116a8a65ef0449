"""Making a dataset: ranks and threads in parallel, each file under a temporary name until it is whole, resumable."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from datagen import crew, manifest
from datagen.buffers import AlignedBuffer
from datagen.content import CONTENT_VERSION
from datagen.crew import Progress, Tally
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.files import Files, Part, files_of
from datagen.layout import layouts
from datagen.manifest import Manifest
from datagen.scan import SHOWN_NAMES
from datagen.spec import DatasetSpec
from datagen.storage.posix import PART_SUFFIX, Storage
from datagen.storage.storage_base import Bytes, Writer

__all__ = ["Made", "Progress", "finish", "generate", "prepare"]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, the user's quota is, or the file exceeds a limit of the process or the file system."""


@dataclass(frozen=True)
class Made:
    """What one rank did."""

    files: int
    """Files made now."""
    bytes: int
    """Bytes of them."""
    kept_files: int
    """Files that were there already."""
    seconds: float


def prepare(spec: DatasetSpec) -> None:
    """Make folders and the incomplete manifest, remove what an interrupted run left; one rank, before all generate.

    Raises:
        UserError: the settings are impossible, the folder can't be written, or it holds another dataset.
        SpaceError: the dataset won't fit.
    """
    files = files_of(spec)
    try:
        _refuse_other_dataset(spec)
        for folder in files.folders():
            os.makedirs(folder, exist_ok=True)
        _remove_leftovers(files)
        _check_space(files)
        if manifest.read(spec.data_folder) is None:
            manifest.write(spec.data_folder, Manifest(spec=spec, made_at=manifest.now()))
    except OSError as error:
        raise _failed(error, spec.data_folder) from error


def generate(
    spec: DatasetSpec,
    *,
    rank: int = 0,
    ranks: int = 1,
    threads: int = 1,
    fsync: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Made:
    """Make those of the files i with i % ranks == rank that are not there yet; `prepare` comes before.

    Files are written through the page cache; with `fsync` each is on the device before it gets its name. `progress` is
    called in the caller's thread, about four times a second.

    Raises:
        SpaceError: the disk is full; nothing incomplete has a final name, and the same call resumes.
        UserError: the settings are impossible, or the folder can't be written.
    """
    files = files_of(spec)
    started = time.monotonic()
    share = range(rank, len(files), ranks)
    tally = Tally(len(share), files.total_bytes(rank, ranks), exact=files.sizes is not None)
    maker = _Maker(files, tally, fsync)
    crew.run(maker.worker, share, tally, threads, progress)
    if progress:
        progress(tally.progress())
    return Made(maker.files, maker.bytes, tally.files - maker.files, time.monotonic() - started)


def finish(spec: DatasetSpec) -> Manifest:
    """Check that every file is there and mark the manifest complete; one rank, after all have generated.

    Raises:
        DatasetError: files are missing or have a wrong size; the manifest stays incomplete.
        UserError: the folder can't be written.
    """
    files = files_of(spec)
    try:
        missing = [files.path(i) for i in range(len(files)) if not files.is_made(i)]
        if missing:
            raise DatasetError(
                f"{len(missing)} of {len(files)} files are not made ({', '.join(missing[:SHOWN_NAMES])}): "
                "run the same command again, which makes only what is missing"
            )
        for folder in files.folders():
            _sync_folder(folder)
        done = Manifest(spec=spec, complete=True, files=len(files), bytes=_bytes_on_disk(files), made_at=manifest.now())
        manifest.write(spec.data_folder, done)
    except OSError as error:
        raise _failed(error, spec.data_folder) from error
    return done


class _Maker:
    """Makes files in several threads and counts what was made now."""

    def __init__(self, files: Files, tally: Tally, fsync: bool) -> None:
        self.files = 0
        self.bytes = 0
        self._files = files
        self._tally = tally
        self._fsync = fsync

    def worker(self) -> Callable[[int], None]:
        """Return a function that makes one file, with a buffer of its own."""
        buffer = AlignedBuffer()
        return lambda running_index: self._make(running_index, buffer)

    def _make(self, running_index: int, buffer: AlignedBuffer) -> None:
        made = [self._make_part(part, running_index, buffer) for part in self._files.parts(running_index)]
        self._tally.add(files=1)
        self._count(sum(size for size in made if size is not None), any(size is not None for size in made))

    def _make_part(self, part: Part, running_index: int, buffer: AlignedBuffer) -> int | None:
        """Return the bytes of a file made now, None if it was there."""
        expected = self._files.size_bytes(running_index) if part.size_bytes is None else part.size_bytes
        try:
            if part.is_made():
                self._tally.add(size_bytes=expected)
                return None
            writer = _CountingWriter(Storage().create(part.path), self._tally)
            try:
                part.write(writer, buffer)
                writer.commit(self._fsync)
            except BaseException:
                writer.discard()
                raise
        except OSError as error:
            raise _failed(error, part.path, expected) from error
        return writer.position

    def _count(self, size_bytes: int, made: bool) -> None:
        with self._tally.lock:
            self.files += made
            self.bytes += size_bytes


class _CountingWriter:
    """A writer that tells the tally of every write, and so ends when the others have."""

    def __init__(self, writer: Writer, tally: Tally) -> None:
        self._writer = writer
        self._tally = tally

    @property
    def position(self) -> int:
        return self._writer.position

    def write(self, data: Bytes) -> None:
        self._writer.write(data)
        self._tally.add(size_bytes=len(data))

    def skip(self, size_bytes: int) -> None:
        self._writer.skip(size_bytes)
        self._tally.add(size_bytes=size_bytes)

    def write_at(self, data: Bytes, offset: int) -> None:
        self._writer.write_at(data, offset)

    def commit(self, fsync: bool) -> None:
        self._writer.commit(fsync)

    def discard(self) -> None:
        self._writer.discard()


def _refuse_other_dataset(spec: DatasetSpec) -> None:
    """Raise UserError when the folder holds a dataset made with other settings, or by another tool."""
    made = manifest.read(spec.data_folder)
    if made is None:
        _refuse_foreign_files(spec)
        return
    differing = manifest.differing_keys(made.spec, spec)
    if made.content_version != CONTENT_VERSION:
        differing.append("it was made by another version of dlemu")
    if differing:
        raise UserError(
            f"{spec.data_folder} holds a dataset made with other settings: {'; '.join(differing)}. "
            "Give the same settings to go on with it, set dataset.data_folder to an empty folder, or delete it first"
        )


def _refuse_foreign_files(spec: DatasetSpec) -> None:
    for layout in layouts(spec):
        with contextlib.suppress(FileNotFoundError), os.scandir(layout.folder) as entries:
            there = next((entry.path for entry in entries if not entry.name.startswith(".")), None)
            if there is not None:
                raise UserError(
                    f"{layout.folder} holds files that dlemu did not make, such as {there}: train on them as they are, "
                    "or set dataset.data_folder to an empty folder"
                )


def _remove_leftovers(files: Files) -> None:
    for folder in files.folders():
        with os.scandir(folder) as entries:
            leftovers = [entry.path for entry in entries if entry.name.endswith(PART_SUFFIX)]
        for path in leftovers:
            os.unlink(path)


def _check_space(files: Files) -> None:
    """Raise SpaceError when what is still to be made exceeds what the file system has left."""
    folder = files.spec.data_folder
    if files.sizes is None:
        return  # how far the bytes will shrink is not known before
    parts = (part for i in range(len(files)) for part in files.parts(i))
    made = sum(part.size_bytes or 0 for part in parts if part.is_made())
    wanted = files.total_bytes() - made
    left = _bytes_left(folder)
    if left is not None and wanted > left:
        raise SpaceError(
            f"{folder} has {left} bytes left and {wanted} are still to be made: free {wanted - left} bytes, "
            "set dataset.data_folder to a larger file system, or lower dataset.num_files_train"
        )


def _bytes_left(folder: str) -> int | None:
    """Return the bytes that a file system has left, None where it does not tell (some remote ones state size 0)."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize if state.f_blocks else None


def _bytes_on_disk(files: Files) -> int:
    if files.sizes is not None:
        return files.total_bytes()
    return sum(os.stat(part.path).st_size for i in range(len(files)) for part in files.parts(i))


def _sync_folder(folder: str) -> None:
    """Bring renames to the device; a file system that can't do that to a folder says EINVAL."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _failed(error: OSError, path: str, size_bytes: int = 0) -> UserError:
    """Turn an error of the system into words: what it was, and what to do."""
    if error.errno not in NO_SPACE:
        where = error.filename or path
        return UserError(f"{where}: {error.strerror}: the dataset can't be written there; check dataset.data_folder")
    left = _bytes_left(os.path.dirname(path) or ".")
    return SpaceError(
        f"no room for {path} ({error.strerror}): it needs {size_bytes} bytes, and {'?' if left is None else left} "
        "are left. Make room (or lift the limit on file sizes) and run the same command again: it goes on from here"
    )
