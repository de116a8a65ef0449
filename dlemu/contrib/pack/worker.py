"""One packing process: it reads an image, prepares it and writes it, one after another, and takes the next file.

The kernel's accounting divides the time of each part: blocked, on a core, waiting for one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from datagen.formats.format_base import PackedSample
from datagen.layout import Layout
from datagen.storage.storage_base import write_whole
from dlemu.comm.thread_accounting import ThreadAccounting, process_storage_bytes
from dlemu.contrib.pack.recipe import DamagedError, prepare
from dlemu.contrib.pack.settings import PackSettings
from dlemu.extend import AlignedBuffer, StorageBase, StorageSpec, UserError, open_storage
from dlemu.runner.crew import Worker

TASK = struct.Struct("<q")
"""A file's number in the list of files to pack, from which all processes take."""
_PARTS = ("read", "compute", "write")
_COUNTERS = ("images", "read_bytes", "written_bytes", "sample_bytes", "storage_bytes", "end_ns", "cpu_ns")
_TIMES = [f"{part}_{time}_ns" for part in _PARTS for time in ("whole", "cpu", "cpu_wait")]
ROW_DTYPE = np.dtype([(name, np.int64) for name in (*_COUNTERS, *_TIMES)])
"""A process's row in shared memory."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The parts of a packing that all processes share."""

    folder: str
    """Folder that all images are below."""
    names: list[str]
    """Paths of the images below it."""
    images_per_file: int
    settings: PackSettings
    layout: Layout
    """Layout of the packed files."""

    def images_of(self, file: int) -> list[str]:
        """Return the paths of the images of a packed file, below the folder."""
        return self.names[file * self.images_per_file : (file + 1) * self.images_per_file]


def work(worker: Worker, job: Job, row: np.void, tasks: int) -> None:
    """Pack files until none is left in `tasks`."""
    packing = _Packing(job, row)
    worker.ready()
    cpu_ns, storage_bytes = time.process_time_ns(), process_storage_bytes()
    while task := os.read(tasks, TASK.size):
        packing.pack(int(TASK.unpack(task)[0]))
    row["cpu_ns"] = time.process_time_ns() - cpu_ns
    row["storage_bytes"] = process_storage_bytes() - storage_bytes
    row["end_ns"] = time.monotonic_ns()


class _Packing:
    def __init__(self, job: Job, row: np.void) -> None:
        self._job, self._row = job, row
        self._storage: StorageBase = open_storage(StorageSpec())
        self._buffer, self._account = AlignedBuffer(), ThreadAccounting()
        self._began_ns, self._began_cpu = 0, (0, 0)
        """When the present part began, on the wall clock and in the thread's CPU time and waiting for a core, in ns."""

    def pack(self, number: int) -> None:
        path, row = self._job.layout.path(number), self._row
        self._began_ns, self._began_cpu = time.monotonic_ns(), self._account.scheduled()
        with self._writing(path):
            writer = self._storage.create_recorded(path)
        try:
            packer = self._job.settings.packer(writer)
            for name in self._job.images_of(number):
                sample = self._prepared(name)
                with self._writing(path):
                    packer.add(sample)
                row["images"] += 1
                row["sample_bytes"] += sample.data.nbytes
            with self._writing(path):
                if content := packer.finish():
                    side = self._job.settings.format_type.sides[0]
                    write_whole(self._storage, side.path(self._job.layout, number), content, sync=False)
                writer.sync()
                writer.commit()  # the name says that all of it is on the device
        except BaseException:
            writer.discard()
            raise
        row["written_bytes"] += writer.position

    def _prepared(self, name: str) -> PackedSample:
        path = f"{self._job.folder}/{name}"
        try:
            data = self._read(path)
            self._end("read")
            self._row["read_bytes"] += len(data)
            sample = prepare(name, data, self._job.settings.recipe)
            self._end("compute")
            return sample
        except (OSError, DamagedError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(
                f"{path} can't be packed: {reason}. Repair or remove it, and run the same command again: it continues "
                "after the finished files"
            ) from error

    def _read(self, path: str) -> memoryview:
        self._storage.size_bytes(path)  # raises for other than regular files: a pipe would block forever
        reader = self._storage.open(path)
        try:
            size = reader.size_bytes
            got = reader.read_into(self._buffer.view(max(1, size))[:size], 0)
        finally:
            reader.close()
        if got != size:
            raise DamagedError(f"it ends after {got} of {size} bytes")
        return self._buffer.view(max(1, size))[:size]

    def _end(self, part: str) -> None:
        """Account for the time since the part before: one look at the kernel's accounting for the end and the begin."""
        ended_ns, (cpu_ns, cpu_wait_ns) = time.monotonic_ns(), self._account.scheduled()
        (began_cpu_ns, began_cpu_wait_ns), row = self._began_cpu, self._row
        row[f"{part}_whole_ns"] += ended_ns - self._began_ns
        row[f"{part}_cpu_ns"] += cpu_ns - began_cpu_ns
        row[f"{part}_cpu_wait_ns"] += cpu_wait_ns - began_cpu_wait_ns
        self._began_ns, self._began_cpu = ended_ns, (cpu_ns, cpu_wait_ns)

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Context: account for the time, and raise UserError for what can't be written."""
        try:
            yield
            self._end("write")
        except ValueError as error:
            raise UserError(f"an image does not fit into {path}: {error}") from error
        except OSError as error:
            raise UserError(
                f"{error.filename or path}: {error.strerror or error}: target can't be written. Free some space (or "
                "raise the limit on file sizes) if that is the reason, and run the same command again: it continues "
                "after the finished files"
            ) from error
