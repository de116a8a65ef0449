"""Generates the files of a dataset, in parallel ranks and threads.

One rank calls `prepare`, then every rank calls `generate`, then one rank calls `finish`. A file has a temporary name
until it is complete, so that another run can resume. A running index numbers the training, then the validation files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from datagen import manifest, thread_pool
from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import DatasetError, SpaceError, UserError, no_space
from datagen.formats.format_base import FileJob, FormatBase, SideFile, Sizes, UnreadFormat, format_named
from datagen.layout import Layout, layouts, record_shapes, stored_sample_bytes
from datagen.manifest import Manifest
from datagen.owned import check_usable
from datagen.scan import SHOWN_NAMES
from datagen.spec import DatasetSpec, refuse
from datagen.storage import storage_base
from datagen.storage.storage_base import FOLDERS, StorageBase, StorageSpec, Writer, open_storage
from datagen.thread_pool import OnProgress, Tally, Worker


@dataclass(frozen=True)
class OutputFile:
    """A data file or a side file (such as an index) to generate."""

    path: str
    size_bytes: int
    exact: bool  # `size_bytes` is exact; else it is an estimate, because the size depends on the contents
    write: Callable[[Writer, AlignedBuffer], None]  # writes the file sequentially
    data_path: str  # a data file's own path; a side file's is that of the data file to which it belongs

    def is_complete(self, size_on_disk: int | None) -> bool:
        """Return whether the file is complete, given its size on disk (None if it does not exist)."""
        if size_on_disk is None:
            return False
        return size_on_disk == self.size_bytes if self.exact else size_on_disk > 0


@dataclass(frozen=True)
class Files:
    """All files of a dataset, which may be millions: memory holds a few numbers for each, in arrays."""

    spec: DatasetSpec
    format: FormatBase
    content: Content
    train: Layout
    valid: Layout
    shapes: Sizes  # of the records in each data file
    sizes: Sizes  # bytes of each data file; an estimate from the mean sample size unless `exact`
    exact: bool  # the settings determine the sizes; else they depend on the contents
    sides: tuple[tuple[SideFile, Sizes], ...] = ()
    """Each kind of side file, with the bytes of the side file of each data file."""

    def __len__(self) -> int:
        return len(self.shapes)

    def outputs(self, running_index: int) -> list[OutputFile]:
        """Return a data file and its side files."""
        layout = self.train if running_index < self.train.num_files else self.valid
        file = running_index - layout.first_running_index
        job = FileJob(self.spec, self.content, running_index, tuple(self.shapes[running_index].tolist()))
        path = layout.path(file)
        size = int(self.sizes[running_index])
        outputs = [OutputFile(path, size, self.exact, partial(self.format.write, job), path)]
        for side, side_sizes in self.sides:
            side_size = int(side_sizes[running_index])
            outputs.append(OutputFile(side.path(layout, file), side_size, True, partial(side.write, job), path))
        return outputs

    def folders(self) -> list[str]:
        splits = (self.train, self.valid)
        folders = [folder for layout in splits for folder in layout.folders()]
        folders += [os.path.dirname(side.path(layout, 0)) for side, _ in self.sides for layout in splits]
        return list(dict.fromkeys(folders))

    def total_bytes(self, rank: int = 0, ranks: int = 1) -> int:
        """Return the bytes of a rank's share: the files i with i % ranks == rank, side files included."""
        arrays = (self.sizes, *(sizes for _, sizes in self.sides))
        return sum(int(sizes[rank::ranks].sum()) for sizes in arrays)


def files_of(spec: DatasetSpec) -> Files:
    """Return the files of a dataset. Raises UserError if the settings are impossible, or the format rejects them."""
    refuse(spec.check())
    file_format = format_named(spec.format)
    shapes = record_shapes(spec, 0, spec.num_files_train + spec.num_files_eval)
    sizes = file_format.file_bytes(spec, shapes)
    if isinstance(file_format, UnreadFormat):
        sizes = file_format.unread_bytes(len(shapes))
    exact = sizes is not None
    if sizes is None:
        sizes = np.full(len(shapes), stored_sample_bytes(spec) * spec.num_samples_per_file, np.int64)
    content = Content(spec.seed, spec.compressibility)
    sides = tuple((side, side.file_bytes(spec, shapes)) for side in file_format.sides)
    train, valid = layouts(spec)
    return Files(spec, file_format, content, train, valid, shapes, sizes, exact, sides)


@dataclass(frozen=True)
class GenerateSummary:
    """What one call of `generate` did on one rank."""

    files: int  # files written; `bytes` are theirs
    bytes: int
    kept_files: int  # files that already existed
    seconds: float


def prepare(spec: DatasetSpec, storage: StorageSpec = FOLDERS) -> None:
    """Create the folders and the manifest, and remove unfinished files of an interrupted run. For one rank.

    Raises UserError if the settings are impossible or the folder is not usable; SpaceError if the dataset won't fit.
    """
    refuse_own_files(spec)
    files, backend = files_of(spec), open_storage(storage.buffered)
    with _writing(spec.data_folder, backend):
        backend.is_folder(spec.data_folder)  # raises if server, credentials or bucket are wrong
        existing = manifest.read(spec.data_folder, backend)
        if existing is None:
            refuse_foreign_files(spec, backend)
        else:
            _check_existing(existing, files, backend)
            for folder in files.folders():
                with contextlib.suppress(FileNotFoundError):
                    backend.remove_unfinished(folder)
        check_space(files, backend)  # before creating folders, so that a failure leaves nothing behind
        if existing is None:
            # The manifest comes before the folders: it marks the dataset as dlemu's even if this is interrupted
            backend.make_folder(spec.data_folder)
            manifest.write(spec.data_folder, Manifest(spec=spec, made_at=manifest.now()), backend)
        for folder in files.folders():
            backend.make_folder(folder)


def generate(
    spec: DatasetSpec,
    storage: StorageSpec = FOLDERS,
    *,
    rank: int = 0,
    ranks: int = 1,
    threads: int = 1,
    fsync: bool = False,
    progress: OnProgress | None = None,
) -> GenerateSummary:
    """Write the missing files of this rank's share, the files i with i % ranks == rank, after `prepare`.

    Files are written through the page cache; with `fsync` each is synced to the device before it is renamed to its
    final name. `progress` is called in the caller's thread, about four times a second. Raises UserError if the settings
    are impossible or the folder can't be written; SpaceError if the disk is full, after which another call resumes.
    """
    files, backend = files_of(spec), open_storage(storage.buffered)
    started = time.monotonic()
    share = range(rank, len(files), ranks)
    tally = Tally(len(share), files.total_bytes(rank, ranks), exact=files.exact)
    written: list[int] = []  # bytes written of each file, side files included

    def worker() -> Worker:
        buffer = AlignedBuffer()  # each thread has its own

        def write_missing(running_index: int) -> None:
            sizes = [_write(output, backend, buffer, tally, fsync) for output in files.outputs(running_index)]
            tally.add(files=1)
            if any(size is not None for size in sizes):
                written.append(sum(size or 0 for size in sizes))

        return write_missing

    thread_pool.run(worker, share, tally, threads, progress)
    return GenerateSummary(len(written), sum(written), tally.files - len(written), time.monotonic() - started)


def finish(spec: DatasetSpec, storage: StorageSpec = FOLDERS) -> Manifest:
    """Check that every file exists and mark the manifest complete. For one rank, after all have called `generate`.

    Raises DatasetError if files are missing or have the wrong size; UserError if the folder can't be written.
    """
    files, backend = files_of(spec), open_storage(storage.buffered)
    with _writing(spec.data_folder, backend):
        if missing := _missing(files, backend):
            raise DatasetError(
                f"{len(missing)} of {len(files)} files have not been made ({', '.join(missing[:SHOWN_NAMES])}): "
                "run the same command again, which makes only what is missing"
            )
        for folder in files.folders():
            backend.sync(folder)
        total_bytes = files.total_bytes()
        if not files.exact:
            total_bytes = sum(size or 0 for _, size in _disk_sizes(files, backend))
        complete = Manifest(spec=spec, complete=True, files=len(files), bytes=total_bytes, made_at=manifest.now())
        manifest.write(spec.data_folder, complete, backend)
    return complete


def _write(output: OutputFile, storage: StorageBase, buffer: AlignedBuffer, tally: Tally, fsync: bool) -> int | None:
    """Write a file unless it is complete; return the bytes written, None if it was complete."""
    with _writing(output.path, storage, output.size_bytes):
        if output.is_complete(next(iter(storage.sizes([output.path])))):
            tally.add(output.size_bytes)
            return None
        writer = storage.create(output.path)
        writer.on_advance = tally.add
        try:
            output.write(writer, buffer)
            if fsync:
                writer.sync()
            writer.commit()
        finally:
            writer.discard()
    return writer.position


def _check_existing(existing: Manifest, files: Files, storage: StorageBase) -> None:
    """Raise UserError if the dataset was made with other settings, or lacks files behind a link out of its folder."""
    data_folder = files.spec.data_folder
    if differences := manifest.differing_keys(existing.spec, files.spec):
        raise UserError(
            f"{data_folder} holds a dataset made with other settings: {'; '.join(differences)}. "
            "Give the same settings to continue it, set dataset.data_folder to an empty folder, or delete it first"
        )
    links = [folder for folder in files.folders() if storage_base.leads_elsewhere(data_folder, folder, storage)]
    if links and _missing(files, storage):
        problem = f"{links[0]} is a link out of {data_folder}: missing files are not created behind it"
        raise UserError(f"{problem}; give a new dataset.data_folder")


def refuse_own_files(spec: DatasetSpec) -> None:
    """Raise UserError if the data folder holds the user's own files: nothing is generated there."""
    if spec.source == "folder":
        raise UserError(
            f"dataset.source=folder: {spec.data_folder} holds your own files, which are only read; to make a dataset "
            "of their sizes leave dataset.source out and set dataset.data_folder to a new folder"
        )


def refuse_foreign_files(spec: DatasetSpec, storage: StorageBase) -> None:
    """Raise UserError if the data folder, which has no manifest, holds files that dlemu did not make."""
    local_folder = storage.local_path(spec.data_folder)
    if local_folder is not None:
        try:
            check_usable(local_folder, "dataset.data_folder")
        except UserError as error:
            raise UserError(f"{error}; to train on those files, no dataset has to be generated") from None
        return
    for layout in layouts(spec):
        with contextlib.suppress(FileNotFoundError), storage.entries(layout.folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    raise UserError(
                        f"{layout.folder} holds files that dlemu did not make, such as {layout.folder}/{entry.name}: "
                        "train on them as they are, or set dataset.data_folder to an empty folder"
                    )


def check_space(files: Files, storage: StorageBase) -> None:
    """Raise SpaceError if the missing files exceed the free space. The error says how many training files would fit."""
    folder = files.spec.data_folder
    free = storage.free_bytes(folder)
    if free is None or not files.exact:  # compressed sizes are unknown
        return
    complete_bytes = sum(file.size_bytes for file, size in _disk_sizes(files, storage) if file.is_complete(size))
    missing_bytes = files.total_bytes() - complete_bytes
    if missing_bytes <= free:
        return
    sizes = sum((side_sizes for _, side_sizes in files.sides), files.sizes)  # of each data file with its side files
    num_train = files.spec.num_files_train
    available_bytes = 0.99 * free - int(sizes[num_train:].sum())  # 1 % is for the file system's metadata
    max_files = int(np.searchsorted(sizes[:num_train].cumsum(), available_bytes, side="right"))
    elsewhere = " in an empty folder" if complete_bytes else ""
    hint = f", or dataset.num_files_train={max_files}{elsewhere}, the most that fit" if max_files > 0 else ""
    raise SpaceError(
        f"{folder} has {free} bytes free and {missing_bytes} are still to be made: free {missing_bytes - free} bytes, "
        f"or set dataset.data_folder to a larger file system{hint}"
    )


def _missing(files: Files, storage: StorageBase) -> list[str]:
    """Return the paths of the data files that are incomplete, or that have an incomplete side file."""
    paths = (file.data_path for file, size in _disk_sizes(files, storage) if not file.is_complete(size))
    return list(dict.fromkeys(paths))


def _disk_sizes(files: Files, storage: StorageBase) -> Iterator[tuple[OutputFile, int | None]]:
    """Return an iterator over all data files and side files, each with its size on disk (None if it does not exist)."""
    all_outputs = itertools.chain.from_iterable(map(files.outputs, range(len(files))))
    # `sizes` may take many paths before it yields the first size: `tee` keeps the files in between
    outputs, outputs_ahead = itertools.tee(all_outputs)
    return zip(outputs, storage.sizes(output.path for output in outputs_ahead), strict=True)


@contextlib.contextmanager
def _writing(path: str, storage: StorageBase, size_bytes: int = 0) -> Iterator[None]:
    """Raise an OSError of the `with` block as UserError, or as SpaceError if there is no space for `size_bytes`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # EFBIG: a limit on the size of files
            advice = "the dataset can't be written there; check dataset.data_folder"
            raise UserError(f"{error.filename or path}: {reason}: {advice}") from error
        free = storage.free_bytes(os.path.dirname(path) or ".")
        space = f"{'?' if free is None else free} are free"
        if error.errno == errno.EDQUOT:
            space = no_space(error)
        if error.errno == errno.ENOSPC and free is not None and free > size_bytes:
            space += ", maybe for no more files (df -i shows its inodes)"
        raise SpaceError(
            f"no room for {path} ({reason}): it needs {size_bytes} bytes, and {space}. Free some space (or raise the "
            "limit on file sizes) and run the same command again: it continues"
        ) from error
