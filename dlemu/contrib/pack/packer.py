"""Packs one file: reads each of its images, prepares it and writes it, one after another.

    file  | create | 1st image: read | compute | write | 2nd image: read | ... | finish, fsync, rename
    part  | write  | read            | compute | write | read            | ... | write

The time of each part is divided by the kernel's accounting: blocked, on a core, waiting for a core.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dlemu.contrib.pack.recipe import DamagedError, prepare
from dlemu.contrib.pack.settings import PackSettings
from dlemu.extend import AlignedBuffer, UserError, format_base, registry, storage_base, thread_accounting
from dlemu.extend import layout as dataset_layout

_GOES_ON = "and run the same command again: it continues after the finished files"


def format_part(settings: PackSettings, part: str) -> Any:
    """Return a class of the format's module: `Packer` or `Format`."""
    return registry.find("datagen.formats", settings.format, part)


class FilePacker:
    """Packs files of one layout, from images below one folder."""

    def __init__(self, settings: PackSettings, folder: str, layout: dataset_layout.Layout) -> None:
        self._settings, self._recipe, self._folder, self._layout = settings, settings.recipe, folder, layout
        self._storage = storage_base.open_storage(storage_base.StorageSpec())
        self._buffer, self._account = AlignedBuffer(), thread_accounting.ThreadAccounting()
        self._row = Counter[str]()  # of the present file
        self._lap_ns = 0  # when the present part began
        self._lap_cpu_ns = self._lap_cpu_wait_ns = 0  # totals of this thread at that moment

    def pack(self, number: int, names: Sequence[str]) -> Counter[str]:
        """Pack the images of these names into the packed file of this number; return its row. Raises UserError."""
        path = self._layout.path(number)
        process_cpu_ns = time.process_time_ns()  # with threads that Pillow or NumPy may start
        storage_bytes = thread_accounting.process_storage_bytes()
        row = self._row = Counter(file=number, began_ns=time.monotonic_ns())
        self._lap_ns = row["began_ns"]
        self._lap_cpu_ns, self._lap_cpu_wait_ns = self._account.scheduled()
        with self._writing(path):
            writer = self._storage.create(path)
        try:
            packer: format_base.Packer = format_part(self._settings, "Packer")(writer)
            for name in names:
                sample = self._prepared(name)
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
                    side = format_part(self._settings, "Format").sides[0]
                    storage_base.write_whole(self._storage, side.path(self._layout, number), side_content, sync=False)
                writer.sync()
                writer.commit()  # From now on, its name says that all of the file is on the device.
        except BaseException:
            writer.discard()
            raise
        row["written_bytes"] = writer.position
        row["cpu_ns"] = time.process_time_ns() - process_cpu_ns
        row["storage_bytes"] = thread_accounting.process_storage_bytes() - storage_bytes
        row["ended_ns"] = time.monotonic_ns()
        return row

    def _prepared(self, name: str) -> format_base.PackedSample:
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
            raise UserError(f"{path} can't be packed: {reason}. Repair or remove it, {_GOES_ON}") from error

    def _read(self, path: str) -> memoryview:
        size_bytes = self._storage.size_bytes(path)  # raises OSError for a pipe, which `open` would wait for
        reader = self._storage.open(path)
        try:
            data = self._buffer.view(max(1, size_bytes))[:size_bytes]
            got_bytes = reader.read_into(data, 0)
        finally:
            reader.close()
        if got_bytes != size_bytes:
            raise DamagedError(f"it ends after {got_bytes} of {size_bytes} bytes")
        return data

    def _end_lap(self, part: str) -> None:
        """Add the time since the last lap ended to a part: `read`, `compute` or `write`. The next lap begins."""
        lap_ns, (cpu_ns, cpu_wait_ns) = time.monotonic_ns(), self._account.scheduled()
        self._row[f"{part}_whole_ns"] += lap_ns - self._lap_ns
        self._row[f"{part}_cpu_ns"] += cpu_ns - self._lap_cpu_ns
        self._row[f"{part}_cpu_wait_ns"] += cpu_wait_ns - self._lap_cpu_wait_ns
        self._lap_ns, self._lap_cpu_ns, self._lap_cpu_wait_ns = lap_ns, cpu_ns, cpu_wait_ns

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Context: add its time to `write`, and raise UserError for what can't be written."""
        try:
            yield
            self._end_lap("write")
        except OSError as error:
            raise UserError(
                f"{path}: {error}: pack.target can't be written. Free some space "
                f"(or raise the limit on file sizes) if that is the reason, {_GOES_ON}"
            ) from error
