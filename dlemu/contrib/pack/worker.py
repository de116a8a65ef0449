"""One packing process: one thread reads images ahead, the main thread prepares them, another thread writes.

It takes the numbers of the files to write from a pipe, sends a message for each finished file, and counts its images,
bytes and times in shared memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from isal import isal_zlib

from datagen.formats.format_base import PackedSample
from datagen.generate import NO_SPACE
from datagen.layout import Layout
from datagen.registry import find
from datagen.storage.storage_base import Bytes, Writer, WriterAround, write_whole
from dlemu.comm.thread_accounting import ThreadAccounting, process_storage_bytes
from dlemu.contrib.pack.image_list import ImageList
from dlemu.contrib.pack.packed_set import PackedFile, Skipped
from dlemu.contrib.pack.recipe import DamagedError, prepare
from dlemu.contrib.pack.words import PackSettings
from dlemu.extend import AlignedBuffer, StorageBase, StorageSpec, UserError, open_storage
from dlemu.runner.crew import Worker

TASK = struct.Struct("<q")
"""A file's number in the pipe of tasks: a read of 8 bytes takes exactly one."""
_COUNTERS = (
    *("images", "read_bytes", "written_bytes", "end_ns", "cpu_ns", "storage_bytes"),
    *("await_task_ns", "await_read_ns", "await_write_ns", "compute_ns", "compute_cpu_ns"),
    *("read_ns", "read_cpu_ns", "read_cpu_wait_ns", "write_ns", "write_cpu_ns", "write_cpu_wait_ns"),
)
ROW_DTYPE = np.dtype([(name, np.int64) for name in _COUNTERS])
"""A process's row in shared memory; its threads write different fields. `await_*`: waiting for another thread."""
_WRITES_AHEAD = 2  # one sample is ready while another is written; more would only take memory
_MESSAGE_BYTES = 50_000
"""Maximum size of a message."""
_REASON_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Job:
    """The parts of a packing that all processes share."""

    images: ImageList
    last_image: int
    images_per_file: int
    settings: PackSettings
    layout: Layout
    """Layout of the packed files."""
    source: StorageSpec
    target: StorageSpec

    def image_range(self, file: int) -> range:
        """Return the indices of the images of a packed file."""
        return range(file * self.images_per_file, min((file + 1) * self.images_per_file, self.last_image))


@dataclass(frozen=True)
class _Image:
    """An image that was read; `view` is valid until its buffer (`slot`) is freed."""

    file: int
    index: int
    slot: int
    view: memoryview
    error: str = ""


@dataclass(frozen=True)
class _FileEnd:
    file: int


def work(worker: Worker, job: Job, row: np.void, tasks: int) -> None:
    """Pack files until there are no more tasks."""
    packing = _Packing(worker, job, row, tasks)
    worker.ready()
    packing.run()


class _Packing:
    def __init__(self, worker: Worker, job: Job, row: np.void, tasks: int) -> None:
        self._worker, self._job, self._row, self._tasks = worker, job, row, tasks
        self._recipe = job.settings.recipe
        self._source: StorageBase = open_storage(job.source)
        self._target: StorageBase = open_storage(job.target.buffered)
        self._buffers = [AlignedBuffer() for _ in range(job.settings.ahead + 1 + self._recipe.keeps * _WRITES_AHEAD)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(len(self._buffers)):
            self._free.put(slot)
        self._to_prepare: queue.Queue[_Image | _FileEnd | None] = queue.Queue(job.settings.ahead)
        self._ready: queue.Queue[tuple[_Image, PackedSample | Skipped] | _FileEnd | None] = queue.Queue(_WRITES_AHEAD)

    def run(self) -> None:
        """Pack until there are no more tasks."""
        row = self._row
        cpu_ns, storage_bytes = time.process_time_ns(), process_storage_bytes()
        threads = [
            threading.Thread(target=self._run_thread, args=(part,), daemon=True)
            for part in (self._read_images, self._write_files)
        ]
        for thread in threads:
            thread.start()
        self._prepare_images()
        began_ns = time.monotonic_ns()
        threads[1].join()
        self._spent("await_write_ns", began_ns)
        row["cpu_ns"] = time.process_time_ns() - cpu_ns
        read_here = process_storage_bytes() - storage_bytes
        row["storage_bytes"] = row["read_bytes"] if self._source.is_remote else read_here
        row["end_ns"] = time.monotonic_ns()

    def _run_thread(self, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:
            self._worker.fail(error)

    def _spent(self, field: str, began_ns: int) -> None:
        self._row[field] += time.monotonic_ns() - began_ns

    def _account(self, thread: str, began_ns: int, before: tuple[int, int], account: ThreadAccounting) -> None:
        """Add the thread's elapsed time, its CPU time and its waiting for a core since `before`."""
        cpu_ns, cpu_wait_ns = account.scheduled()
        self._spent(f"{thread}_ns", began_ns)
        self._row[f"{thread}_cpu_ns"] += cpu_ns - before[0]
        self._row[f"{thread}_cpu_wait_ns"] += cpu_wait_ns - before[1]

    # reading

    def _read_images(self) -> None:
        account = ThreadAccounting()
        while (file := self._next_file()) is not None:
            for index in self._job.image_range(file):
                slot = self._free.get()
                began_ns, before = time.monotonic_ns(), account.scheduled()
                image = self._read_image(file, index, slot)
                self._account("read", began_ns, before, account)
                self._row["read_bytes"] += len(image.view)
                self._to_prepare.put(image)
            self._to_prepare.put(_FileEnd(file))
        self._to_prepare.put(None)

    def _next_file(self) -> int | None:
        began_ns = time.monotonic_ns()
        task = os.read(self._tasks, TASK.size)
        self._spent("await_task_ns", began_ns)
        return int(TASK.unpack(task)[0]) if task else None

    def _read_image(self, file: int, index: int, slot: int) -> _Image:
        path = self._job.images.path(index)
        try:
            if not self._source.is_remote:
                self._source.size_bytes(path)  # raises for other than regular files: opening a pipe would block forever
            reader = self._source.open(path)
            try:
                size, unit = reader.size_bytes, self._source.alignment
                view = self._buffers[slot].view(max(unit, -(-size // unit) * unit))
                got = min(reader.read_into(view if unit > 1 else view[:size], 0), size)
            finally:
                reader.close()
        except OSError as error:
            return _Image(file, index, slot, memoryview(b""), f"it can't be read: {error.strerror or error}")
        return _Image(file, index, slot, view[:got], "" if got == size else f"it ends after {got} of {size} bytes")

    # preparing

    def _prepare_images(self) -> None:
        while True:
            began_ns = time.monotonic_ns()
            item = self._to_prepare.get()
            ready_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            self._row["await_read_ns"] += ready_ns - began_ns
            result = (item, self._prepared(item)) if isinstance(item, _Image) else item
            done_ns = time.monotonic_ns()
            self._row["compute_ns"] += done_ns - ready_ns
            self._row["compute_cpu_ns"] += time.thread_time_ns() - cpu_ns
            if isinstance(item, _Image) and not self._recipe.keeps:
                self._free.put(item.slot)
            self._ready.put(result)
            self._spent("await_write_ns", done_ns)
            if item is None:
                return

    def _prepared(self, image: _Image) -> PackedSample | Skipped:
        path, reason = self._job.images.path(image.index), image.error
        if not reason:
            try:
                kind = self._job.images.kind_of(image.index)
                return prepare(self._job.images.names[image.index], image.view, kind, self._recipe)
            except DamagedError as error:
                reason = f"it can't be decoded: {error}"
        if not self._job.settings.skip_damaged:
            raise UserError(
                f"{path}: {reason}. Repair or remove it, or pack the others with skip_damaged=true, which counts "
                "and lists it; files packed so far are kept"
            )
        return Skipped(path=path, reason=reason[:_REASON_CHARACTERS])

    # writing

    def _write_files(self) -> None:
        account = ThreadAccounting()
        current: _PackedFile | None = None
        try:
            while (item := self._ready.get()) is not None:
                began_ns, before = time.monotonic_ns(), account.scheduled()
                if not isinstance(item, _FileEnd):
                    image, sample = item
                    current = current or _PackedFile(self._job, image.file, self._target)
                    current.add(sample, len(image.view))
                    if self._recipe.keeps:
                        self._free.put(image.slot)
                    self._row["images"] += 1
                elif current is not None:
                    finished = current.finish()
                    self._row["written_bytes"] += finished.bytes
                    self._worker.send(_shortened(finished))
                    current = None
                self._account("write", began_ns, before, account)
        except OSError as error:
            path = current.path if current is not None else self._job.layout.folder
            if current is not None:
                current.discard()
            raise _write_failed(error, path, self._target) from error


def _shortened(finished: PackedFile) -> PackedFile:
    """Return a finished file that fits into a message: without paths and reasons, if too many images were skipped."""
    if len(pickle.dumps(finished)) <= _MESSAGE_BYTES:
        return finished
    return replace(finished, skipped=(Skipped(path="", reason=""),) * len(finished.skipped))


def _write_failed(error: OSError, path: str, storage: StorageBase) -> UserError:
    reason = error.strerror or str(error)
    if error.errno not in NO_SPACE:
        return UserError(f"{error.filename or path}: {reason}: the packed files can't be written there; check target")
    free = None
    with contextlib.suppress(OSError):
        free = storage.free_bytes(os.path.dirname(path))
    return UserError(
        f"no room for {path} ({reason}): {'?' if free is None else free} bytes are left. Free some space (or "
        "raise the limit on file sizes) and run the same command again: it continues after the finished files"
    )


class _PackedFile:
    """A packed file that is being written."""

    def __init__(self, job: Job, number: int, storage: StorageBase) -> None:
        self.path = job.layout.path(number)
        self._job, self._number, self._storage = job, number, storage
        self._writer = _ChecksumWriter(storage.create_recorded(self.path))
        self._packer = job.settings.packer(self._writer)
        self._samples, self._source_bytes, self._payload_bytes = 0, 0, 0
        self._skipped: list[Skipped] = []

    def add(self, sample: PackedSample | Skipped, source_bytes: int) -> None:
        self._source_bytes += source_bytes
        if isinstance(sample, Skipped):
            self._skipped.append(sample)
            return
        try:
            self._packer.add(sample)
        except ValueError as error:
            self.discard()
            raise UserError(f"{sample.name} does not fit into {self.path}: {error}") from error
        self._samples += 1
        self._payload_bytes += sample.data.nbytes

    def finish(self) -> PackedFile:
        """Sync the file and give it its final name; a file without samples is discarded."""
        if self._samples:
            if content := self._packer.finish():
                side = find("datagen.formats", self._job.settings.format, "Format")().sides[0]
                write_whole(self._storage, side.path(self._job.layout, self._number), content, sync=False)
            self._writer.sync()
            self._writer.commit()
        else:
            self._writer.discard()
        return PackedFile(
            number=self._number,
            samples=self._samples,
            source_bytes=self._source_bytes,
            bytes=self._writer.position,
            crc32=self._writer.crc32,
            payload_bytes=self._payload_bytes,
            skipped=tuple(self._skipped),
        )

    def discard(self) -> None:
        self._writer.discard()


class _ChecksumWriter(WriterAround):
    """A writer that computes the CRC-32 of the bytes it writes."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.crc32 = 0

    def write(self, data: Bytes) -> None:
        self.crc32 = isal_zlib.crc32(data, self.crc32)
        self._writer.write(data)

    def skip(self, size_bytes: int) -> None:
        self.write(bytes(size_bytes))

    def write_at(self, data: Bytes, offset: int) -> None:
        raise NotImplementedError  # packed files are written front to back
