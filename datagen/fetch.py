"""The read path that every loader calls: sample numbers in, bytes in the caller's memory out.

A `FetchSpec` crosses to worker processes; a `Fetcher` is opened where it is used.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.content import explain
from datagen.crops import PLACE_BYTES, crop_start, put_crop
from datagen.engines import Engine, FastEngine, LibraryEngine, NullEngine
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.fetch_spec import CROP_BYTES, FetchSpec
from datagen.formats.format_base import RecordFormat, Sample, UnreadFormat
from datagen.groups import GroupFormat, GroupReader
from datagen.records import RecordReader
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage

_NoBytes = ctypes.c_char * 0


class Fetched(NamedTuple):
    """What one batch took."""

    places: list[tuple[int, int]]
    """Offset and bytes of each sample in the caller's memory, in the order asked for; of row groups each stretch."""
    app_bytes: int
    """Bytes read from storage."""
    read_calls: int
    read_ns: int
    """Time in reads."""
    decode_ns: int
    """Time in everything else: taking files apart, unpacking, cropping, verifying."""


class Fetcher:
    """Reads samples. One thread at a time may use it; it owns its buffers.

    Files read whole are closed with each batch; files of records stay open until `close`, or until the fetcher is gone.

    `storage` stands in for the one that the spec names.

    Raises:
        UserError: the format or storage is unknown, or the settings contradict each other.
    """

    def __init__(self, spec: FetchSpec, storage: StorageBase | None = None) -> None:
        if spec.verify and spec.layout.names is not None:
            raise UserError("reader.verify needs a dataset made by dlemu: this one has file names of its own")
        self._spec = spec
        self._engine = _engine(spec, storage)
        self._buffer = AlignedBuffer()
        self._decode = spec.decode == "full"
        self._reads_nothing = isinstance(self._engine, NullEngine)
        self._verify = spec.verify and not self._reads_nothing

    def fetch(self, samples: Sequence[int] | NDArray[np.int64], out: memoryview) -> Fetched:
        """Read samples into `out` (at least `slot_bytes(len(samples))` bytes, writable).

        With `resize_bytes`, sample number b of the batch lies at b * resize_bytes; else `places` says where.

        Raises:
            DatasetError: a file is gone, unreadable, damaged, or (with verify) does not hold what it should.
            SpaceError: `out` is too small for a sample.
        """
        started_ns = time.monotonic_ns()
        engine = self._engine
        app_bytes, read_calls, read_ns = engine.app_bytes, engine.read_calls, engine.read_ns
        try:
            places = self._fill(samples, out)
        finally:
            engine.finish()
        read_ns = engine.read_ns - read_ns
        decode_ns = max(0, time.monotonic_ns() - started_ns - read_ns)
        return Fetched(places, engine.app_bytes - app_bytes, engine.read_calls - read_calls, read_ns, decode_ns)

    def close(self) -> None:
        """Close what is open."""
        self._engine.close()

    def _fill(self, samples: Sequence[int] | NDArray[np.int64], out: memoryview) -> list[tuple[int, int]]:
        engine = self._engine
        if isinstance(engine, GroupReader):
            return self._fetch_groups(engine, samples, out)
        listed: Sequence[int] = samples.tolist() if isinstance(samples, np.ndarray) else samples
        if isinstance(engine, RecordReader):
            fill_records = self._fetch_record_crops if self._spec.resize_bytes else self._fetch_records
            return fill_records(engine, listed, out)
        if self._spec.max_group_bytes:  # null storage: as many bytes as the columns of the batch have
            return [(0, min(len(samples) * self._spec.nominal_sample_bytes, len(out)))]
        fill = self._fetch_crops if self._spec.resize_bytes else self._fetch_whole
        return fill(engine, listed, out)

    def _fetch_crops(self, engine: Engine, samples: Sequence[int], out: memoryview) -> list[tuple[int, int]]:
        size = self._spec.resize_bytes
        target = np.frombuffer(out, np.uint8)
        nowhere = memoryview(b"")
        places = []
        for number, sample in enumerate(samples):
            data = np.frombuffer(self._read(engine, sample, nowhere).data, np.uint8)
            begin = number * size
            start = crop_start(self._spec.seed, sample, data.size, size)
            put_crop(target[begin : begin + size], data[start : start + size])
            places.append((begin, size))
        return places

    def _fetch_records(self, reader: RecordReader, samples: Sequence[int], out: memoryview) -> list[tuple[int, int]]:
        begin = -_address(out) % PLACE_BYTES
        places = reader.read(samples, out[begin:])
        if begin:
            places = [(begin + start, size) for start, size in places]
        if self._verify:
            for sample, (start, size) in zip(samples, places, strict=True):
                self._compare_record(sample, out[start : start + size])
        return places

    def _fetch_groups(
        self, reader: GroupReader, samples: Sequence[int] | NDArray[np.int64], out: memoryview
    ) -> list[tuple[int, int]]:
        begin = -_address(out) % PLACE_BYTES
        places = [(begin + start, size) for start, size in reader.read(samples, out[begin:])]
        for values in reader.values:
            self._compare(Sample(values.data, values.data, values.payload_offset), values.file)
        return places

    def _fetch_record_crops(
        self, reader: RecordReader, samples: Sequence[int], out: memoryview
    ) -> list[tuple[int, int]]:
        """Read some records at a time, as many as a processor's cache holds, and crop them."""
        spec, target = self._spec, np.frombuffer(out, np.uint8)
        size = spec.resize_bytes
        together = max(1, CROP_BYTES // spec.place_bytes)
        room = self._buffer.view(together * spec.place_bytes)
        for first in range(0, len(samples), together):
            some = samples[first : first + together]
            for number, (sample, (start, length)) in enumerate(zip(some, reader.read(some, room), strict=True), first):
                if self._verify:
                    self._compare_record(sample, room[start : start + length])
                start += crop_start(spec.seed, sample, length, size)
                crop = np.frombuffer(room[start : start + min(size, length)], np.uint8)
                put_crop(target[number * size : (number + 1) * size], crop)
        return [(number * size, size) for number in range(len(samples))]

    def _compare_record(self, sample: int, data: memoryview) -> None:
        file, index = self._spec.layout.locate(sample)
        self._compare(Sample(data, data, index * len(data)), file)

    def _fetch_whole(self, engine: Engine, samples: Sequence[int], out: memoryview) -> list[tuple[int, int]]:
        base, place_bytes = _address(out), self._spec.place_bytes
        begin = -base % PLACE_BYTES
        places = []
        for sample in samples:
            data = self._read(engine, sample, out[begin : begin + place_bytes]).data
            size = len(data)
            offset = -1 if data.readonly else _address(data) - base
            if not 0 <= offset < len(out):  # it was decoded elsewhere
                if begin + size > len(out):
                    raise SpaceError(
                        f"sample {sample} has {size} bytes, its place {self._spec.place_bytes}: set "
                        "dataset.record_length_bytes_resize to the bytes of each sample that the trainer is to get"
                    )
                offset = begin
                np.copyto(np.frombuffer(out, np.uint8)[offset : offset + size], np.frombuffer(data, np.uint8))
            places.append((offset, size))
            begin += -(-(offset - begin + size) // PLACE_BYTES) * PLACE_BYTES
        return places

    def _read(self, engine: Engine, sample: int, room: memoryview) -> Sample:
        layout = self._spec.layout
        file, index = layout.locate(sample)
        path = "" if self._reads_nothing else layout.path(file)
        read = engine.read(path, index, room)
        if self._verify:
            self._compare(read, file)
        if self._decode and read.decode is not None:
            read = read._replace(data=read.decode())
            if self._spec.in_place:
                self._engine.finish()  # what is decoded will lie where the file lies now
        return read

    def _compare(self, read: Sample, file: int) -> None:
        layout, content = self._spec.layout, self._spec.content
        running_index = layout.running_index(file)
        at = read.first_difference(content, running_index)
        if at is None:
            return
        _, seen = explain(read.plain_payload, at, content, running_index)
        raise DatasetError(
            f"{layout.path(file)} (file number {running_index}) is not what was generated: "
            f"at payload offset {read.payload_offset + at} {seen}. "
            "Run `dlemu datagen verify`; if it finds nothing, the storage returned wrong bytes"
        )


def _engine(spec: FetchSpec, given: StorageBase | None) -> Engine | RecordReader | GroupReader:
    storage = given or open_storage(spec.storage)
    if storage.reads_nothing:
        return NullEngine(spec.nominal_sample_bytes)
    file_format = registry.find("datagen.formats", spec.format, "Format")()
    if isinstance(file_format, UnreadFormat):
        return NullEngine(spec.nominal_sample_bytes)
    samples = spec.layout.num_samples_per_file
    if spec.engine == "library":
        if spec.storage.direct:
            raise UserError(
                "reader.engine=library reads files by their path through the page cache, not past it: "
                "set reader.engine=fast, or reader.odirect=false"
            )
        if not isinstance(file_format, GroupFormat):
            return LibraryEngine(storage, file_format, samples, spec.layout.folder)
    if isinstance(file_format, GroupFormat):
        return GroupReader(storage, file_format, spec.layout, spec.dataset, spec.engine, spec.decode, spec.verify)
    if isinstance(file_format, RecordFormat):
        if file_format.mapped and given is None and spec.storage == StorageSpec():
            storage = open_storage(StorageSpec(type="mapped"))
        return RecordReader(storage, file_format, spec.layout, spec.verify)
    return FastEngine(storage, file_format, samples, 0 if spec.in_place else spec.max_file_bytes)


def _address(memory: memoryview) -> int:
    """Return where writable memory begins, in a sixth of the time that an array over it takes to tell."""
    return ctypes.addressof(_NoBytes.from_buffer(memory))
