"""Finds the dataset in a folder, and checks that it is the one requested."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from datagen import scan
from datagen.errors import DatasetError
from datagen.formats.format_base import Offsets, RecordFormat, Sizes, format_named
from datagen.groups import NO_GROUPS, GroupBytes, GroupFormat, largest_group_bytes
from datagen.layout import Layout, endings_of, layouts, record_shapes
from datagen.manifest import MANIFEST_NAME, PACKED_NAME, Manifest, differing_keys, read
from datagen.records import locate_records
from datagen.spec import DatasetSpec, ParquetSpec
from datagen.storage.posix import cache_restored
from datagen.storage.storage_base import FOLDERS, StorageBase, StorageSpec, open_storage

if TYPE_CHECKING:  # most datasets are dlemu's own
    from datagen.own_folder import UserFolder

READ_KEYS = (
    *("format", "num_samples_per_file", "record_length_bytes", "record_length_bytes_stdev", "record_dims"),
    *("record_length_bytes_quantiles", "record_element_type", "compression", "enable_chunking", "chunk_size"),
    *("hdf5", "parquet"),
)
"""Settings that a dataset and the run that reads it must have in common."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset as found on disk."""

    spec: DatasetSpec  # settings of the manifest; without one, those requested, with the number of files on disk
    train: Layout
    valid: Layout | None  # None when no validation files are requested
    manifest: Manifest | None  # None: the folder has none (other tools and `dlemu pack` write none)
    max_file_bytes: int  # size of the largest file in use
    max_sample_bytes: int  # size of the largest sample in use; 0 if the settings don't determine it
    plain_samples: bool = False  # samples are stored plainly, so that none takes more than `max_sample_bytes`
    max_group_bytes: GroupBytes = NO_GROUPS  # memory of the largest row group in use; 0 for formats without row groups
    max_record_bytes: int = 0  # bytes of the largest record, with framing; 0 for formats whose files are read whole
    offsets: Mapping[str, Offsets] = field(default_factory=dict, compare=False, repr=False)
    """Offsets of the records in files whose headers were read, by path, so that no reader reads these again."""
    total_bytes: int  # size of all files in use
    notes: tuple[str, ...] = ()  # what a user should know before a run on this dataset


def inspect(
    spec: DatasetSpec, command_hint: Callable[[], str] = lambda: "dlemu datagen", storage: StorageSpec = FOLDERS
) -> Dataset:
    """Find the dataset that `spec` requests in a storage. For one rank, because a million files take seconds.

    `command_hint` returns the command that makes the dataset, for messages. If there are more files than requested, the
    first in name order are used, as by DLIO. Raises DatasetError if the dataset is missing, incomplete or damaged, or
    has another format or other settings; UserError if there is no such storage.
    """
    backend = open_storage(storage.buffered)
    try:
        backend.is_folder(spec.data_folder)  # raises if server, credentials or bucket are wrong
        if spec.source == "folder":
            from datagen.own_folder import inspect_own_folder

            own = inspect_own_folder(spec, storage)
            return _Inspection(own.spec, None, command_hint, backend).own_dataset(own)
        manifest = read(spec.data_folder, backend)
        if manifest is not None:
            spec = _with_parquet_defaults(spec, manifest.spec)
            if differing := differing_keys(manifest.spec, spec, READ_KEYS):
                raise DatasetError(
                    f"{spec.data_folder} was made with other settings: {'; '.join(differing)}. Give the settings it "
                    f"was made with, or set dataset.data_folder to another folder. Make it with: {command_hint()}"
                )
            if not manifest.complete:
                problem = f"{spec.data_folder}: generation started at {manifest.made_at} and never finished"
                raise DatasetError(f"{problem}. Make it with: {command_hint()}: it makes only what is missing")
        return _Inspection(spec, manifest, command_hint, backend).dataset()
    except OSError as error:
        raise DatasetError(
            f"{error.filename or spec.data_folder}: {error.strerror or error}: the dataset can't be inspected; "
            "check the permissions and the file system"
        ) from error


def no_dataset(folder: str, storage: StorageBase) -> str:
    """Return a sentence on why a folder holds no dataset: it is missing or empty. Return "" if it may hold one."""
    if not storage.is_folder(folder):
        return f"there is no dataset: {folder} is not a folder."
    with storage.entries(folder) as entries:
        if any(not entry.name.startswith(".") for entry in entries):
            return ""
    return f"there is no dataset in {folder}: it is empty."


def _with_parquet_defaults(requested: DatasetSpec, existing: DatasetSpec) -> DatasetSpec:
    """Return the requested settings; those of Parquet that have their defaults are taken from the dataset.

    DLIO's workload files for training omit these settings, because DLIO's readers take them from the files.
    """
    if requested.format != "parquet" or existing.format != "parquet":
        return requested
    values, defaults = vars(requested.parquet), vars(ParquetSpec())
    omitted = {key: value for key, value in vars(existing.parquet).items() if values[key] == defaults[key]}
    return replace(requested, parquet=replace(requested.parquet, **omitted))


class _Inspection:
    """Finds the files of a dataset, and collects the total and maximum of their sizes."""

    def __init__(
        self, spec: DatasetSpec, manifest: Manifest | None, command_hint: Callable[[], str], storage: StorageBase
    ) -> None:
        self._requested = spec
        self._storage = storage
        self._manifest = manifest
        self._command_hint = command_hint
        self._format = format_named(spec.format)
        self._notes: list[str] = []
        self._packed = False  # whether `dlemu pack` made the files, whose samples may have any size
        self._offsets: dict[str, Offsets] = {}
        self._max_file = self._max_sample = self._max_record = self._total = 0  # bytes in the splits added so far
        self._max_group = NO_GROUPS
        self._plain_samples = True

    def dataset(self) -> Dataset:
        """Return the dataset that the settings describe; dlemu or another tool made it."""
        folder = self._requested.data_folder
        if reason := no_dataset(folder, self._storage):
            raise DatasetError(f"{reason} Make it with: {self._command_hint()}")
        train, valid = layouts(self._requested)
        if self._manifest is None and not self._storage.is_folder(train.folder):
            train = replace(train, folder=folder)  # other tools may not make a sub-folder `train`
        train = self._find_files(train)
        valid = self._find_files(replace(valid, first_running_index=train.named_files))
        spec = self._spec_on_disk(train, valid)
        for layout in (train, valid):
            if layout.num_files:
                self._add_sizes(spec, layout)
        return self._describe(spec, train, valid if valid.num_files else None)

    def own_dataset(self, own: UserFolder) -> Dataset:
        """Return the dataset that consists of a folder of a user's own files."""
        opens = isinstance(self._format, RecordFormat | GroupFormat)  # of other formats, only the sizes are needed
        paths = map(own.layout.path, range(own.layout.num_files if opens else 0))
        with cache_restored(map(self._storage.local_path, paths)):
            self._add_sizes(own.spec, own.layout, own.sizes)
        return self._describe(own.spec, own.layout, None)

    def _describe(self, spec: DatasetSpec, train: Layout, valid: Layout | None) -> Dataset:
        return Dataset(
            spec=spec,
            train=train,
            valid=valid,
            manifest=self._manifest,
            max_file_bytes=self._max_file,
            max_sample_bytes=self._max_sample,
            plain_samples=self._plain_samples,
            max_group_bytes=self._max_group,
            max_record_bytes=self._max_record,
            total_bytes=self._total,
            offsets=self._offsets,
            notes=tuple(self._notes),
        )

    def _find_files(self, requested: Layout) -> Layout:
        """Return the layout of the files on disk. Their names follow the manifest, or without one, the request."""
        if requested.num_files == 0:
            return requested
        expected = requested
        if self._manifest is not None:
            train, valid = layouts(self._manifest.spec)
            layout = train if requested.split == "train" else valid
            expected = replace(layout, folder=requested.folder, num_files=requested.num_files)
        layout, notes = scan.find_files(expected, endings_of(self._requested.format), self._storage, self._command_hint)
        self._notes += notes
        return layout

    def _spec_on_disk(self, train: Layout, valid: Layout) -> DatasetSpec:
        """Return the settings of the manifest; without one, those requested with the number of files on disk."""
        if self._manifest is not None:
            return replace(self._manifest.spec, parquet=self._requested.parquet)  # the run chooses the columns to read
        folder = self._requested.data_folder
        (packed_bytes,) = self._storage.sizes([os.path.join(folder, PACKED_NAME)])
        self._packed = packed_bytes is not None
        note_packed = f"{folder} was made by `dlemu pack`: its files are used as they are"
        note_foreign = f"{folder} has no {MANIFEST_NAME}: another tool made it, or copied it"
        self._notes.append(note_packed if self._packed else note_foreign)
        return replace(
            self._requested,
            num_files_train=train.named_files,
            num_files_eval=valid.named_files,
        )

    def _add_sizes(self, spec: DatasetSpec, layout: Layout, sizes: Sizes | None = None) -> None:
        """Add the sizes in a split. Sizes of files that are not given are computed from the settings, or looked up."""
        shapes: Sizes | None = None  # of the records; None unless computed
        computed: Sizes | None = None  # sizes of the files; None unless the settings determine them
        if layout.names is None:
            shapes = record_shapes(spec, layout.first_running_index, layout.first_running_index + layout.num_files)
            computed = self._format.file_bytes(spec, shapes)
            if computed is not None and not self._sizes_match(spec, layout, shapes, computed):
                shapes = computed = None
        if shapes is not None:
            self._max_sample = max(self._max_sample, int(shapes.prod(axis=1).max()) * spec.element_bytes)
        if isinstance(self._format, RecordFormat):
            if shapes is not None:
                max_record = int(self._format.record_bytes(spec, shapes).max())
            else:
                max_record, offsets = locate_records(self._format, layout, self._storage)
                self._offsets |= offsets
            self._max_record = max(self._max_record, max_record)
        if isinstance(self._format, GroupFormat):
            files = range(layout.num_files) if computed is None else (int(computed.argmax()),)
            largest = largest_group_bytes(self._format, layout, files, spec, self._storage)
            self._max_group = GroupBytes.maximum((self._max_group, largest))
        if sizes is None:
            sizes = scan.sizes_on_disk(layout, self._storage) if computed is None else computed
        self._plain_samples &= computed is not None
        self._max_file = max(self._max_file, int(sizes.max()))
        self._total += int(sizes.sum())

    def _sizes_match(self, spec: DatasetSpec, layout: Layout, shapes: Sizes, sizes: Sizes) -> bool:
        """Return whether files have these sizes; False only for packed or other tools' files. Raises DatasetError."""
        checked, mismatches = scan.wrong_sizes(layout.path, sizes, self._storage)
        if mismatches and self._packed:
            return False
        if self._manifest is None and len(mismatches) > checked // 2:  # if most differ, another tool made the files
            self._notes.append(f"{layout.folder}: the sizes differ from the settings; files are used as they are")
            return False
        if self._manifest is not None:  # side files are optional, and other tools may make none
            for side in self._format.sides:
                side_sizes = side.file_bytes(spec, shapes)
                sides_checked, side_mismatches = scan.wrong_sizes(partial(side.path, layout), side_sizes, self._storage)
                checked += sides_checked
                mismatches += side_mismatches
        if mismatches:
            raise DatasetError(
                f"{'; '.join(mismatches[: scan.SHOWN_NAMES])}: {len(mismatches)} wrong of {checked} files looked up. "
                "Delete those that exist and run the command again, which makes only what is missing. Make it with: "
                f"{self._command_hint()}"
            )
        return True
