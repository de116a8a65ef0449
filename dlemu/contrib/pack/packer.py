"""Packs one file: reads, prepares and writes its images one after another.

    file      | create | 1st image: read | compute | write | 2nd image: read | ... | finish, fsync, rename
    activity  | write  | read            | compute | write | read            | ... | write

The kernel's accounting divides the time of each activity into blocked, on a core, and waiting for a core.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from dlemu.contrib.pack.recipe import DamagedError, prepare
from dlemu.contrib.pack.settings import PackSettings
from dlemu.contrib.pack.summary import CLOCKS
from dlemu.extend import AlignedBuffer, UserError, format_base, registry, storage_base, thread_accounting
from dlemu.extend import layout as dataset_layout

_HOW_TO_CONTINUE = "and run the same command again: it continues after the finished files"


class FilePacker:
    """Packs images of a folder into files, one file at a time; `layout` gives the paths of the packed files."""

    def __init__(self, settings: PackSettings, folder: str, layout: dataset_layout.Layout) -> None:
        self._settings = settings
        self._recipe = settings.recipe
        self._folder = folder
        self._layout = layout
        self._storage = storage_base.open_storage(storage_base.StorageSpec())
        self._buffer = AlignedBuffer()  # holds one image
        self._account = thread_accounting.ThreadAccounting()
        self._row = Counter[str]()  # of the current file
        self._lap_ns = 0, 0, 0  # `CLOCKS` at the start of the lap; all time until `_end_lap` is spent on one activity

    def pack(self, number: int, names: Sequence[str]) -> Counter[str]:
        """Pack the named images into packed file `number`, and return its row; raises UserError."""
        path = self._layout.path(number)
        process_cpu_ns = time.process_time_ns()  # includes threads that Pillow or NumPy may start
        storage_bytes = thread_accounting.process_storage_bytes()
        row = self._row = Counter(file=number, began_ns=time.monotonic_ns())
        self._lap_ns = row["began_ns"], *self._account.scheduled()
        with self._writing(path):
            writer = self._storage.create(path)
        try:
            packer: format_base.Packer = registry.find("datagen.formats", self._settings.format, "Packer")(writer)
            for name in names:
                sample = self._prepare(name)
                with self._writing(path):
                    try:
                        packer.add(sample)
                    except ValueError as error:
                        raise UserError(f"an image does not fit into {path}: {error}") from error
                row["images"] += 1
                row["sample_bytes"] += sample.data.nbytes
            with self._writing(path):
                side_content = packer.finish()
                if side_content:
                    side = registry.find("datagen.formats", self._settings.format, "Format").sides[0]
                    storage_base.write_whole(self._storage, side.path(self._layout, number), side_content, sync=False)
                writer.sync()
                writer.commit()  # gives the file its name, which means that all of it is on the device
        except BaseException:
            writer.discard()
            raise
        row["written_bytes"] = writer.position
        row["cpu_ns"] = time.process_time_ns() - process_cpu_ns
        row["storage_bytes"] = thread_accounting.process_storage_bytes() - storage_bytes
        row["ended_ns"] = time.monotonic_ns()
        return row

    def _prepare(self, name: str) -> format_base.PackedSample:
        """Read and prepare an image; raises UserError."""
        path = f"{self._folder}/{name}"
        try:
            data = self._read(path)
            self._end_lap("read")
            self._row["read_bytes"] += len(data)
            sample = prepare(name, data, self._recipe)
            self._end_lap("compute")
            return sample
        except (OSError, DamagedError) as error:
            reason = getattr(error, "strerror", error)
            raise UserError(f"{path} can't be packed: {reason}. Repair or remove it, {_HOW_TO_CONTINUE}") from error

    def _read(self, path: str) -> memoryview:
        size_bytes = self._storage.size_bytes(path)  # raises OSError for a pipe, on which `open` would block
        with contextlib.closing(self._storage.open(path)) as reader:
            data = self._buffer.view(max(1, size_bytes))[:size_bytes]
            read_bytes = reader.read_into(data, 0)
        if read_bytes != size_bytes:
            raise DamagedError(f"it ends after {read_bytes} of {size_bytes} bytes")
        return data

    def _end_lap(self, activity: str) -> None:
        """Add the time of the lap to an activity (`read`, `compute` or `write`), and begin the next lap."""
        now_ns = time.monotonic_ns(), *self._account.scheduled()
        for clock, before_ns, after_ns in zip(CLOCKS, self._lap_ns, now_ns, strict=True):
            self._row[f"{activity}_{clock}_ns"] += after_ns - before_ns
        self._lap_ns = now_ns

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """End a lap of `write` with the context; raise UserError in place of an OSError."""
        try:
            yield
            self._end_lap("write")
        except OSError as error:
            raise UserError(
                f"{path}: {error}: pack.target can't be written. Free some space "
                f"(or raise the limit on file sizes) if that is the reason, {_HOW_TO_CONTINUE}"
            ) from error
