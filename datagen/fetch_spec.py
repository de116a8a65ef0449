"""What a worker needs to know to read samples, and how much memory that takes.

Plain and frozen, so it crosses to worker processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from datagen.content import Content
from datagen.crops import PLACE_BYTES
from datagen.errors import UserError
from datagen.groups import most_groups
from datagen.inspection import Found
from datagen.layout import Layout, nominal_sample_bytes
from datagen.spec import DatasetSpec, Decode
from datagen.storage.storage_base import FOLDERS, NULL_STORAGE, StorageSpec, open_storage

CROP_BYTES = 1 << 20
"""Records read at a time before they are cropped."""


@dataclass(frozen=True, kw_only=True)
class FetchSpec:
    """What a worker needs to know to read samples of one split."""

    layout: Layout
    format: str
    storage: StorageSpec = FOLDERS
    engine: Literal["fast", "library"] = "fast"
    decode: Decode = "none"
    """`full` unpacks what the format encodes (pixels, numbers, packed chunks); `none` ships it as it was read."""
    resize_bytes: int = 0
    """Bytes to ship of each sample, cropped from what was read; 0 ships samples whole."""
    verify: bool = False
    """Compare every byte read with `content`."""
    content: Content = field(default=Content(0))
    max_file_bytes: int = 0
    """Size of the largest file."""
    max_sample_bytes: int = 0
    """Size of the largest sample, where it may exceed its file (compressed formats); else 0."""
    plain_samples: bool = False
    """No sample is larger than `max_sample_bytes`: nothing is packed or written as text."""
    max_record_bytes: int = 0
    """Size of the largest record, framing included, where records are read by themselves; 0: files are read whole."""
    max_group_bytes: int = 0
    """Memory that the largest row group takes, where these are read whole (`datagen.groups`); else 0."""
    dataset: DatasetSpec = field(default=DatasetSpec())
    """What the files are made from, for formats of row groups."""
    nominal_sample_bytes: int = 0
    """Bytes of a sample of null storage."""
    seed: int = 0
    """Picks where samples are cropped."""

    @classmethod
    def for_dataset(
        cls,
        found: Found,
        layout: Layout,
        *,
        storage: StorageSpec = FOLDERS,
        engine: Literal["fast", "library"] = "fast",
        decode: Decode = "none",
        resize_bytes: int = 0,
        verify: bool = False,
        seed: int = 0,
    ) -> FetchSpec:
        """Return the spec that reads `layout`, one of the two of a dataset that was found."""
        stored, unpacked = found.max_group_bytes
        return cls(
            layout=layout,
            format=found.spec.format,
            storage=storage,
            engine=engine,
            decode=decode,
            resize_bytes=resize_bytes,
            verify=verify,
            content=Content(found.spec.seed, found.spec.compressibility),
            max_file_bytes=found.max_file_bytes,
            max_sample_bytes=found.max_sample_bytes,
            plain_samples=found.plain_samples,
            max_record_bytes=found.max_record_bytes,
            max_group_bytes=unpacked if decode == "full" or engine == "library" else stored,
            dataset=found.spec,
            nominal_sample_bytes=nominal_sample_bytes(found.spec),
            seed=seed,
        )

    @property
    def reads_nothing(self) -> bool:
        """Nothing is read: what is measured is the reader itself."""
        return self.storage == NULL_STORAGE

    def by_local_paths(self, needed_by: str) -> FetchSpec:
        """Return the spec for a library on this host that opens files itself; `needed_by` is the setting that wants it.

        Raises:
            UserError: the storage has no paths that it could open.
        """
        folder = open_storage(self.storage.buffered).local_path(self.layout.folder)
        if folder is None:
            raise UserError(
                f"{needed_by} opens {self.format} files by their path, and storage {self.storage.type} has none: set "
                "reader.data_loader=pytorch or threads, which read through the storage, or put the dataset in a folder"
            )
        storage = replace(FOLDERS, direct=self.storage.direct)
        return replace(self, layout=replace(self.layout, folder=folder), storage=storage)

    @property
    def in_place(self) -> bool:
        """Samples are read straight to where the caller wants them."""
        by_record = self.layout.num_samples_per_file == 1 or self.max_record_bytes > 0
        return self.max_group_bytes > 0 or (self.resize_bytes == 0 and by_record)

    @property
    def buffer_bytes(self) -> int:
        """Return the most memory of its own that a `Fetcher` touches, beside the caller's."""
        if self.max_group_bytes:
            return 0
        if self.max_record_bytes:
            return max(self.place_bytes, CROP_BYTES) if self.resize_bytes else 0
        samples = 0 if self.max_sample_bytes <= self.max_file_bytes else self.max_sample_bytes
        decoded = self.max_sample_bytes if self.decode == "full" else 0
        return decoded + (samples if self.in_place else self.max_file_bytes + max(samples, self.resize_bytes))

    @property
    def place_bytes(self) -> int:
        """Memory set aside for each whole sample."""
        shares_its_file = self.plain_samples and self.layout.num_samples_per_file > 1
        largest = self.max_sample_bytes if shares_its_file else max(self.max_file_bytes, self.max_sample_bytes)
        most = max(self.max_record_bytes or largest, self.nominal_sample_bytes, 1)
        places = -(-most // PLACE_BYTES) + (self.max_record_bytes > 0)  # a record may begin and end within a place
        return places * PLACE_BYTES

    def slot_bytes(self, batch_size: int) -> int:
        """Return the memory that a batch needs, a multiple of 4096 bytes."""
        if self.max_group_bytes:
            rows = self.layout.num_samples_per_file
            groups = most_groups(batch_size, rows, self.dataset.parquet.row_group_size)
            return groups * self.max_group_bytes + PLACE_BYTES
        if self.resize_bytes:
            return -(-batch_size * self.resize_bytes // PLACE_BYTES) * PLACE_BYTES
        return batch_size * self.place_bytes + PLACE_BYTES  # one more, for memory that is not aligned itself
