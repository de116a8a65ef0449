"""Which dataset is in a folder, and whether it is the one that is requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.content import CONTENT_VERSION
from datagen.errors import DatasetError
from datagen.formats.format_base import Format, RecordFormat, sides_of
from datagen.groups import NO_GROUPS, GroupBytes, GroupFormat, largest_group_bytes
from datagen.layout import Layout, layouts, record_shapes
from datagen.manifest import MANIFEST_NAME, Manifest, differing_keys, read
from datagen.records import largest_record_bytes
from datagen.scan import (
    SHOWN_NAMES,
    count_ruled,
    named_as_there,
    other_files,
    recognise,
    scan,
    sizes_on_disk,
    surplus,
    wrong_sizes,
)
from datagen.spec import DatasetSpec, ParquetSpec, Split
from datagen.storage.storage_base import FOLDERS, StorageBase, StorageSpec, open_storage
from datagen.unread import unread

if TYPE_CHECKING:  # most datasets are dlemu's own
    from datagen.own_folder import OwnFolder

READ_KEYS = (
    "format",
    "num_samples_per_file",
    "record_length_bytes",
    "record_length_bytes_stdev",
    "record_length_bytes_quantiles",
    "record_dims",
    "record_element_type",
    "compression",
    "enable_chunking",
    "chunk_size",
    "hdf5",
    "parquet",
)
"""Settings in which a dataset must agree with the run that reads it."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset as it is on disk."""

    spec: DatasetSpec
    """What it was made from; without a manifest, what was requested, with what the names show."""
    train: Layout
    valid: Layout | None
    """None when no validation files are requested."""
    manifest: Manifest | None
    max_file_bytes: int
    """Size of the largest file in use."""
    max_sample_bytes: int
    """Size of the largest sample in use; 0 where no law gives it."""
    plain_samples: bool = False
    """Files hold their samples as plain bytes, so that none is larger than `max_sample_bytes`."""
    max_group_bytes: GroupBytes = NO_GROUPS
    """Memory that the largest row group in use takes; 0 for formats that have none."""
    max_record_bytes: int = 0
    """Size of the largest record in use, framing included; 0 for formats whose files are read whole."""
    total_bytes: int
    """Size of all files in use."""
    notes: tuple[str, ...] = ()
    """What a user should know before trusting a run on it."""


class _Advice:
    """How to make the dataset, as text; the command is put together only for the message that shows it."""

    def __init__(self, command_hint: str | Callable[[], str]) -> None:
        self._command_hint = command_hint

    @property
    def command(self) -> str:
        return self._command_hint if isinstance(self._command_hint, str) else self._command_hint()

    def __str__(self) -> str:
        return f"Make it with: {self.command}"


def inspect(
    spec: DatasetSpec, command_hint: str | Callable[[], str] = "dlemu datagen", storage: StorageSpec = FOLDERS
) -> Dataset:
    """Find the dataset that `spec` requests in a storage.

    `command_hint` is the command that makes it, or returns it, for messages.

    A set of more files than requested is used in part, the first in name order, as DLIO does. Meant for one rank: a
    million files take seconds.

    Raises:
        DatasetError: there is no dataset, it is incomplete, unfinished, damaged, of another format or other settings.
        UserError: there is no such storage.
    """
    advice, opened = _Advice(command_hint), open_storage(storage.buffered)
    try:
        opened.preflight(spec.data_folder)
        if spec.source == "folder":
            from datagen.own_folder import look

            return _Inspection(spec, None, advice, opened).of_own(look(spec, storage))
        manifest = read(spec.data_folder, opened)
        if manifest is not None:
            spec = _with_what_is_left_out(spec, manifest.spec)
            _check_manifest(manifest, spec, advice)
        return _Inspection(spec, manifest, advice, opened).dataset()
    except OSError as error:
        raise DatasetError(
            f"{error.filename or spec.data_folder}: {error.strerror or error}: the dataset can't be inspected; "
            "check the permissions and the file system"
        ) from error


def no_dataset(folder: str, storage: StorageBase) -> str:
    """Return a sentence if there is no such folder, or nothing in it but hidden files; else ""."""
    if not storage.is_folder(folder):
        return f"there is no dataset: {folder} is not a folder."
    with storage.entries(folder) as entries:
        if any(not entry.name.startswith(".") for entry in entries):
            return ""
    return f"there is no dataset in {folder}: it is empty."


def _with_what_is_left_out(asked: DatasetSpec, made: DatasetSpec) -> DatasetSpec:
    """Return the settings with what they leave out of a Parquet file's shape: that is the dataset's own.

    DLIO's workload files for training leave it out, as its readers take it from the files.
    """
    if asked.format != "parquet" or made.format != "parquet":
        return asked
    left_out, parquet = ParquetSpec(), asked.parquet
    rows = made.parquet.row_group_size if parquet.row_group_size == left_out.row_group_size else parquet.row_group_size
    return replace(
        asked, parquet=replace(parquet, columns=parquet.columns or made.parquet.columns, row_group_size=rows)
    )


def _check_manifest(manifest: Manifest, asked: DatasetSpec, advice: _Advice) -> None:
    folder = asked.data_folder
    if manifest.content_version != CONTENT_VERSION:
        raise DatasetError(f"{folder} was made by another version of dlemu: make it again in an empty folder. {advice}")
    differing = differing_keys(manifest.spec, asked, READ_KEYS)
    if differing:
        raise DatasetError(
            f"{folder} was made with other settings: {'; '.join(differing)}. "
            f"Give the settings it was made with, or set dataset.data_folder to another folder. {advice}"
        )
    if not manifest.complete:
        raise DatasetError(
            f"{folder}: generation started at {manifest.made_at} and never finished. "
            f"The same command makes only what is missing: {advice.command}"
        )


class _Inspection:
    """One look at a dataset."""

    def __init__(self, asked: DatasetSpec, manifest: Manifest | None, advice: _Advice, storage: StorageBase) -> None:
        self._asked = asked
        self._storage = storage
        self._manifest = manifest
        self._advice = advice
        self._format: Format = registry.find("datagen.formats", asked.format, "Format")()
        self._notes: list[str] = []
        self._lawless: set[Split] = set()
        """Splits whose files are not those of the settings."""

    def dataset(self) -> Dataset:
        asked_train, asked_valid = layouts(self._asked)
        if nothing := no_dataset(self._asked.data_folder, self._storage):
            raise DatasetError(f"{nothing} {self._advice}")
        train = self._recognise(self._where_it_lies(asked_train))
        first_valid = train.named_files if train.names is None else self._asked.num_files_train
        valid = self._recognise(replace(asked_valid, first_running_index=first_valid))
        spec = self._spec_on_disk(train, valid)
        used = [layout for layout in (train, valid) if layout.num_files]
        sizes = [self._sizes(spec, layout) for layout in used]
        return Dataset(
            spec=spec,
            train=train,
            valid=valid if valid.num_files else None,
            manifest=self._manifest,
            max_file_bytes=max((int(files.max()) for files, _ in sizes), default=0),
            max_sample_bytes=max((largest for _, largest in sizes), default=0),
            plain_samples=self._is_plain(spec) and all(largest for _, largest in sizes),
            max_group_bytes=GroupBytes.most(self._largest_group(spec, layout) for layout in used),
            max_record_bytes=max((self._largest_record(spec, layout) for layout in used), default=0),
            total_bytes=sum(int(files.sum()) for files, _ in sizes),
            notes=tuple(self._notes),
        )

    def of_own(self, own: OwnFolder) -> Dataset:
        """Return the dataset that a folder of a user's own files is."""
        self._lawless.add("train")
        paths = map(own.layout.path, range(own.layout.num_files))
        with unread([local for path in paths if (local := self._storage.local_path(path)) is not None]):
            largest_group = self._largest_group(own.spec, own.layout)
            largest_record = self._largest_record(own.spec, own.layout)
        return Dataset(
            spec=own.spec,
            train=own.layout,
            valid=None,
            manifest=None,
            max_file_bytes=int(own.sizes.max()),
            max_sample_bytes=0,
            max_group_bytes=largest_group,
            max_record_bytes=largest_record,
            total_bytes=int(own.sizes.sum()),
        )

    def _where_it_lies(self, train: Layout) -> Layout:
        """Return the training split in the dataset's folder itself, where others put no folder `train` in between."""
        if self._manifest is not None or self._storage.is_folder(train.folder):
            return train
        return replace(train, folder=self._asked.data_folder)

    def _recognise(self, asked: Layout) -> Layout:
        if asked.num_files == 0:
            return asked
        ruled = self._as_made(asked)
        guessed = self._manifest is None and ruled != asked
        if (there := count_ruled(ruled, self._storage, alone=guessed)) is not None:
            self._notes += surplus(ruled, there)
            return ruled
        scanned = scan(asked.folder, asked.extension, self._storage, without="valid")
        if not scanned.names and scanned.other_extensions:
            raise DatasetError(other_files(asked, scanned))
        layout, notes = recognise(scanned, asked, self._advice)
        self._notes += notes
        return layout

    def _as_made(self, asked: Layout) -> Layout:
        """Return the layout with the names that the manifest has; without one, those that a file found first has."""
        if self._manifest is None:
            return named_as_there(asked, self._storage)
        made = layouts(self._manifest.spec)[0 if asked.split == "train" else 1]
        return replace(made, folder=asked.folder, num_files=asked.num_files)

    def _spec_on_disk(self, train: Layout, valid: Layout) -> DatasetSpec:
        if self._manifest is not None:
            return replace(self._manifest.spec, parquet=self._asked.parquet)  # which columns are read is asked for
        self._notes.append(f"{self._asked.data_folder} has no {MANIFEST_NAME}: another tool made it, or copied it")
        return replace(
            self._asked,
            num_files_train=train.named_files if train.names is None else train.num_files,
            num_files_eval=valid.named_files if valid.names is None else valid.num_files,
        )

    def _is_plain(self, spec: DatasetSpec) -> bool:
        return self._format.file_bytes(spec, record_shapes(spec, 0, 1)) is not None

    def _sizes(self, spec: DatasetSpec, layout: Layout) -> tuple[NDArray[np.int64], int]:
        """Return the size of each file in use and of the largest sample (0: unknown)."""
        if layout.names is not None:
            self._lawless.add(layout.split)
            return sizes_on_disk(layout, self._storage), 0
        shapes = record_shapes(spec, layout.first_running_index, layout.running_index(layout.num_files))
        largest = int(shapes.prod(axis=1).max()) * spec.element_bytes
        sizes = self._format.file_bytes(spec, shapes)
        if sizes is None:
            return sizes_on_disk(layout, self._storage), largest
        looked_up, wrong = wrong_sizes(layout.path, sizes, self._storage)
        if not wrong:
            self._check_sides(spec, layout, shapes)
            return sizes, largest
        self._lawless.add(layout.split)
        if self._manifest is not None or len(wrong) <= looked_up // 2:
            raise DatasetError(
                f"{len(wrong)} of {looked_up} files looked up have the wrong size: {'; '.join(wrong[:SHOWN_NAMES])}. "
                f"Delete them and run the command again, which makes only what is missing. {self._advice}"
            )
        self._notes.append(f"{layout.folder}: the sizes differ from the settings; files are used as they are")
        return sizes_on_disk(layout, self._storage), 0

    def _check_sides(self, spec: DatasetSpec, layout: Layout, shapes: NDArray[np.int64]) -> None:
        """Look at the side files of a dataset of ours; those of others may come without, for samples need none."""
        if self._manifest is None:
            return
        for side in sides_of(self._format):
            paths = partial(side.path, layout)
            looked_up, wrong = wrong_sizes(paths, side.file_bytes(spec, shapes), self._storage)
            if wrong:
                raise DatasetError(
                    f"{len(wrong)} of {looked_up} index files looked up are missing or have the wrong size: "
                    f"{'; '.join(wrong[:SHOWN_NAMES])}. The same command makes them again. {self._advice}"
                )

    def _largest_group(self, spec: DatasetSpec, layout: Layout) -> GroupBytes:
        if not isinstance(self._format, GroupFormat):
            return NO_GROUPS
        if layout.split in self._lawless or (self._manifest is None and not self._is_plain(spec)):
            return largest_group_bytes(self._format, layout, spec, self._storage)
        shapes = record_shapes(spec, layout.first_running_index, layout.running_index(layout.num_files))
        return self._format.group_bytes(spec, shapes)

    def _largest_record(self, spec: DatasetSpec, layout: Layout) -> int:
        if not isinstance(self._format, RecordFormat):
            return 0
        if layout.split in self._lawless:
            return largest_record_bytes(self._format, layout, self._storage)
        shapes = record_shapes(spec, layout.first_running_index, layout.running_index(layout.num_files))
        return int(self._format.record_bytes(spec, shapes).max())
