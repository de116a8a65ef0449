"""All files of a dataset, by running index: the training files first, then the validation files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.errors import SpaceError, UserError
from datagen.formats.format_base import FileJob, FormatBase, SideFile, UnreadFormat, format_named
from datagen.layout import Layout, layouts, payload_bytes, record_shapes
from datagen.spec import DatasetSpec, joined_problems
from datagen.storage.storage_base import StorageBase, Writer

FILE_BYTES = 80
"""Peak memory per file while shapes and sizes are computed."""


@dataclass(frozen=True)
class Part:
    """A data file or a side file (such as an index)."""

    path: str
    size_bytes: int | None
    """Exact size; None if it depends on the contents."""
    write: Callable[[Writer, AlignedBuffer], None]
    """Writes the file sequentially."""
    is_side: bool

    def is_made(self, storage: StorageBase) -> bool:
        """Return whether the file exists with the right size (if known). Raises OSError."""
        try:
            return self.has(storage.size_bytes(self.path))
        except FileNotFoundError:
            return False

    def has(self, size_bytes: int | None) -> bool:
        """Return whether a file of this size is complete; None: the file does not exist."""
        if size_bytes is None:
            return False
        return size_bytes > 0 if self.size_bytes is None else size_bytes == self.size_bytes


@dataclass(frozen=True)
class Files:
    """All files of a dataset. Only the arrays grow with the number of files: a few numbers each."""

    spec: DatasetSpec
    format: FormatBase
    content: Content
    train: Layout
    valid: Layout
    shapes: NDArray[np.int64]
    sizes: NDArray[np.int64] | None
    """Exact bytes of each file; None if they depend on the contents."""
    sides: tuple[tuple[SideFile, NDArray[np.int64]], ...] = ()
    """Each kind of side file, and the bytes of that side file for each data file."""

    def __len__(self) -> int:
        return len(self.shapes)

    def path(self, running_index: int) -> str:
        layout, file = self._place(running_index)
        return layout.path(file)

    def parts(self, running_index: int) -> list[Part]:
        """Return a data file and its side files."""
        layout, file = self._place(running_index)
        job = self.job(running_index)
        size = None if self.sizes is None else int(self.sizes[running_index])
        parts = [Part(layout.path(file), size, partial(self.format.write, job), False)]
        for side, sizes in self.sides:
            parts.append(Part(side.path(layout, file), int(sizes[running_index]), partial(side.write, job), True))
        return parts

    def folders(self) -> list[str]:
        """Return every folder that holds files of the dataset."""
        splits = (self.train, self.valid)
        folders = [folder for layout in splits for folder in layout.folders()]
        own = (side.folder(layout) for side, _ in self.sides for layout in splits)
        return folders + [folder for folder in own if folder is not None]

    def _place(self, running_index: int) -> tuple[Layout, int]:
        if running_index < self.train.num_files:
            return self.train, running_index
        return self.valid, running_index - self.train.num_files

    def job(self, running_index: int) -> FileJob:
        return FileJob(self.spec, self.content, running_index, tuple(self.shapes[running_index].tolist()))

    def size_bytes(self, running_index: int) -> int:
        """Return the bytes of a data file; if they depend on the contents, the bytes of its samples instead."""
        if self.sizes is not None:
            return int(self.sizes[running_index])
        return int(payload_bytes(self.spec, self.shapes[running_index : running_index + 1])[0])

    def total_bytes(self, rank: int = 0, ranks: int = 1) -> int:
        """Return the bytes of a rank's share: the files i with i % ranks == rank, side files included."""
        sides = sum(int(sizes[rank::ranks].sum()) for _, sizes in self.sides)
        if self.sizes is not None:
            return sides + int(self.sizes[rank::ranks].sum())
        return sides + int(payload_bytes(self.spec, self.shapes[rank::ranks]).sum())


def files_of(spec: DatasetSpec) -> Files:
    """Return the files of a dataset.

    Raises:
        UserError: listing the settings that are impossible, or that the format does not support.
        SpaceError: there is not enough free memory for the sizes of so many files.
    """
    problems = spec.check()
    if problems:
        raise UserError(joined_problems(problems))
    files = spec.num_files_train + spec.num_files_eval
    wanted, free = files * FILE_BYTES, psutil.virtual_memory().available
    if wanted > free:
        raise SpaceError(
            f"the sizes of {files:,} files need {wanted / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are "
            "free: use fewer files (dataset.num_files_train), with more samples in each"
        )
    file_format = format_named(spec.format)
    shapes = record_shapes(spec, 0, spec.num_files_train + spec.num_files_eval)
    sizes = file_format.file_bytes(spec, shapes)
    if isinstance(file_format, UnreadFormat):
        sizes = file_format.unread_bytes(len(shapes))
    content = Content(spec.seed, spec.compressibility)
    sides = tuple((side, side.file_bytes(spec, shapes)) for side in file_format.sides)
    return Files(spec, file_format, content, *layouts(spec), shapes, sizes, sides)
