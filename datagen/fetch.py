"""The read path of every loader: a `Fetcher` reads samples, given by number, into the caller's memory."""

from __future__ import annotations

import functools
import time
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from datagen.buffers import AlignedBuffer, address_of, round_up
from datagen.content import Content, explain
from datagen.engines import Engine, FileEngine, NullEngine, ReadSettings
from datagen.errors import DatasetError, UserError, damaged_own_file, reading
from datagen.formats.format_base import RecordFormat, Sample, UnreadFormat, format_named
from datagen.groups import GroupFormat, GroupReader, max_groups
from datagen.inspection import Dataset
from datagen.layout import Layout, Places, Samples, even_places, nominal_sample_bytes, sample_numbers
from datagen.records import RecordReader
from datagen.spec import DatasetSpec, Decode, EngineName
from datagen.storage.storage_base import FOLDERS, NULL_STORAGE, StorageBase, StorageSpec, local_folder, open_storage

CROP_BYTES = 1 << 20  # bytes of samples read at a time before they are cropped: they stay in a processor's cache
CROP_AHEAD_BYTES = 64 << 20  # the same if several requests may be in flight: enough samples for all of them
PLACE_BYTES = 4096  # the places of samples begin at multiples of this, for O_DIRECT and DMA


@dataclass(frozen=True)
class FetchSpec:
    """What a worker process needs in order to open its own `Fetcher`, which reads samples of one split; picklable."""

    found: Dataset  # the dataset as found on disk by `inspect`
    layout: Layout  # of the training or the validation files of the dataset
    _: KW_ONLY
    storage: StorageSpec = FOLDERS
    engine: EngineName = "matched"
    transfer_bytes: int = 0  # maximum bytes of a read call, unless calls are matched; 0: the format's maximum
    decode: Decode = "none"
    """`full` decodes what the format encodes (pixels, numbers, compressed chunks); `none` returns bytes as read."""
    resize_bytes: int = 0  # bytes to return of each sample, from its beginning; 0 returns whole samples
    verify: bool = False  # compare every byte read with the generated content

    @property
    def dataset(self) -> DatasetSpec:
        return self.found.spec

    @property
    def format(self) -> str:
        return self.dataset.format

    @functools.cached_property
    def nominal_sample_bytes(self) -> int:
        """Mean bytes of a sample; every sample of null storage has as many."""
        return nominal_sample_bytes(self.dataset)

    @property
    def max_group_bytes(self) -> int:
        """Bytes that the largest row group takes in memory; 0 for formats without row groups (`datagen.groups`)."""
        group = self.found.max_group_bytes
        return group.unpacked if self.decode == "full" or self.engine == "library" else group.stored

    @property
    def reads_nothing(self) -> bool:
        """Whether the storage is null storage, with which a run measures the reader's own cost."""
        return self.storage == NULL_STORAGE

    @property
    def samples_per_crop(self) -> int:
        """Samples that are read together, and then cropped to `resize_bytes`; 0 if samples are not cropped."""
        if self.max_group_bytes or not self.resize_bytes:
            return 0
        requests = self.storage.io_depth  # in flight at a time, each for another sample
        return max(requests, (CROP_BYTES if requests == 1 else CROP_AHEAD_BYTES) // self.place_bytes)

    @property
    def buffer_bytes(self) -> int:
        """Maximum memory of a `Fetcher` besides the caller's: for crops, shared files and decoded samples."""
        if self.max_group_bytes:
            return self.max_group_bytes  # for the row group that is kept for the next batch
        found = self.found
        total = self.samples_per_crop * self.place_bytes
        if found.max_record_bytes:  # records are read straight to their places
            return total
        if self.layout.num_samples_per_file > 1:  # samples of a file share its bytes
            total += found.max_file_bytes
        if self.decode == "full":
            total += found.max_sample_bytes
        if found.max_sample_bytes > found.max_file_bytes:  # compressed files are decompressed into extra memory
            total += found.max_sample_bytes
        return total

    @property
    def place_bytes(self) -> int:
        """Memory reserved for each whole sample, a multiple of 4096 bytes."""
        found = self.found
        if found.max_record_bytes:  # aligned reads begin before a record, and end after it
            return round_up(max(found.max_record_bytes, self.nominal_sample_bytes) + PLACE_BYTES, PLACE_BYTES)
        largest_bytes = max(found.max_sample_bytes, self.nominal_sample_bytes, 1)
        shares_its_file = found.plain_samples and self.layout.num_samples_per_file > 1
        if not shares_its_file:  # the place may have to hold the whole file
            largest_bytes = max(largest_bytes, found.max_file_bytes)
        return round_up(largest_bytes, PLACE_BYTES)

    def slot_bytes(self, batch_size: int) -> int:
        """Return the memory that a batch needs, a multiple of 4096 bytes."""
        if self.max_group_bytes:
            groups = max_groups(batch_size, self.layout.num_samples_per_file, self.dataset.parquet.row_group_size)
            return groups * self.max_group_bytes + PLACE_BYTES
        if self.resize_bytes:
            return round_up(batch_size * self.resize_bytes, PLACE_BYTES)
        return batch_size * self.place_bytes + PLACE_BYTES  # the last is for aligning the first place


class Fetched(NamedTuple):
    """Where the samples of a batch are in memory, and what reading them took."""

    places: Places  # where the samples are in the caller's memory, in the order requested; for row groups, the spans
    app_bytes: int  # bytes read from storage
    read_calls: int
    read_ns: int  # time spent in reads
    decode_ns: int  # time spent in all else: parsing, decoding, cropping, verifying
    remote_bytes: int = 0  # `app_bytes` if the storage is remote (bypasses this host's page cache), else 0


class Fetcher:
    """Reads samples into the caller's memory. Not thread-safe.

    Files read whole are closed after each batch; files of records stay open until `close` or garbage collection.
    `storage` replaces that of the spec. Raises UserError for an unknown format or storage, or contradictory settings.
    """

    def __init__(self, spec: FetchSpec, storage: StorageBase | None = None) -> None:
        if spec.verify and spec.layout.names is not None:
            raise UserError("reader.verify needs a dataset made by dlemu: the files of this one have other names")
        self._spec = spec
        backend = storage or open_storage(spec.storage)
        self._is_remote = backend.is_remote
        self._is_own = spec.dataset.source == "folder"
        self._engine = _make_engine(spec, backend)
        self._buffer = AlignedBuffer(spec.samples_per_crop * spec.place_bytes)
        if not isinstance(self._engine, NullEngine):
            self._buffer.take_pages()

    def fetch(self, samples: Samples, out: memoryview) -> Fetched:
        """Read samples into `out` (at least `slot_bytes(len(samples))` bytes, writable).

        With `resize_bytes`, sample i of the batch is at i * resize_bytes; else `places` says where it is.
        Raises DatasetError if a file is missing, damaged or (with verify) wrong; SpaceError if `out` is too small.
        """
        started_ns = time.monotonic_ns()
        engine = self._engine
        bytes_before, calls_before, ns_before = engine.app_bytes, engine.read_calls, engine.read_ns
        try:
            if self._spec.samples_per_crop:
                places = self._fetch_crops(samples, out)
            else:
                begin = -address_of(out) % PLACE_BYTES
                places = engine.read(samples, out[begin:])
                places[:, 0] += begin
        except DatasetError as error:
            if not self._is_own:
                raise
            raise damaged_own_file(error) from error
        finally:
            engine.finish()
        read_ns = engine.read_ns - ns_before
        decode_ns = max(0, time.monotonic_ns() - started_ns - read_ns)
        app_bytes = engine.app_bytes - bytes_before
        read_calls = engine.read_calls - calls_before
        return Fetched(places, app_bytes, read_calls, read_ns, decode_ns, app_bytes if self._is_remote else 0)

    def close(self) -> None:
        """Close all files."""
        self._engine.close()

    def _fetch_crops(self, samples: Samples, out: memoryview) -> Places:
        """Read `samples_per_crop` samples at a time into the buffer; copy `resize_bytes` of each to `out`."""
        numbers = sample_numbers(samples)
        crop_bytes = self._spec.resize_bytes
        step = self._spec.samples_per_crop
        memory = self._buffer.view(step * self._spec.place_bytes)
        source, target = np.frombuffer(memory, np.uint8), np.frombuffer(out, np.uint8)
        for first in range(0, len(numbers), step):
            places = self._engine.read(numbers[first : first + step], memory).tolist()
            for index, (start, length) in enumerate(places, first):
                crop = source[start : start + min(crop_bytes, length)]
                place = target[index * crop_bytes : (index + 1) * crop_bytes]
                place[: crop.size] = crop
                place[crop.size :] = 0  # the sample is shorter than the crop
        return even_places(0, crop_bytes, crop_bytes, len(numbers))


def _compare(layout: Layout, content: Content, sample: Sample, file: int) -> None:
    """Raise DatasetError if a sample differs from the content generated for its file."""
    running_index = layout.first_running_index + file
    with reading(layout.path(file)):
        index = sample.first_difference(content, running_index)
    if index is None:
        return
    difference = explain(sample.plain_payload, index, content, running_index)
    raise DatasetError(
        f"{layout.path(file)} (file number {running_index}) is not what was generated: "
        f"at payload offset {sample.payload_offset + index} {difference}. "
        "Run `dlemu datagen verify`; if it finds nothing, the storage returned wrong bytes"
    )


def _make_engine(spec: FetchSpec, storage: StorageBase) -> Engine:
    """Return the engine that reads what a spec describes from an open storage."""
    file_format = format_named(spec.format)
    layout = spec.layout
    if storage.reads_nothing or isinstance(file_format, UnreadFormat):
        return NullEngine(spec.nominal_sample_bytes, 0 if spec.max_group_bytes else spec.place_bytes)
    file_format.own_files = spec.dataset.source == "folder"
    check = None
    if spec.verify:
        check = partial(_compare, layout, Content(spec.dataset.seed, spec.dataset.compressibility))
    library = spec.engine == "library"
    if library:
        local_folder(storage, layout.folder, "reader.engine=library")
    matched = spec.engine == "matched" and storage.alignment == 1 and not storage.is_remote
    transfer_bytes = 0  # requests to a server are split by the storage
    if not storage.is_remote:
        transfer_bytes = round_up(spec.transfer_bytes or file_format.transfer_bytes, storage.alignment)
    decodes = spec.decode == "full"
    settings = ReadSettings(storage, layout, check, transfer_bytes, decodes=decodes, matched=matched, library=library)
    if isinstance(file_format, GroupFormat):
        return GroupReader(settings, file_format, spec.dataset)
    if isinstance(file_format, RecordFormat) and not library:
        return RecordReader(settings, file_format, spec.found.offsets)
    return FileEngine(settings, file_format, spec.place_bytes, spec.found.max_file_bytes)
