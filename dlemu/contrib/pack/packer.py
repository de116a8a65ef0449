"""Packs one file: reads each of its images, prepares it and writes it, one after another.

The kernel's accounting divides the time of each part: blocked, on a core, waiting for one.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from dlemu.contrib.pack.recipe import DamagedError, prepare
from dlemu.contrib.pack.settings import PackSettings
from dlemu.extend import AlignedBuffer, UserError, format_base, registry, storage_base, thread_accounting
from dlemu.extend import layout as dataset_layout

_GOES_ON = "and run the same command again: it continues after the finished files"


def format_part(settings: PackSettings, part: str) -> type:
    """Return a class of the format's module: `Packer` or `Format`."""
    found: type = registry.find("datagen.formats", settings.format, part)
    return found


class FilePacker:
    """Packs files of one layout; `counted` has the columns of `rows.COLUMNS` that it measures, of one file."""

    def __init__(self, settings: PackSettings, folder: str, layout: dataset_layout.Layout) -> None:
        """`folder`: the one that all images are below."""
        self._settings, self._recipe, self._folder, self._layout = settings, settings.recipe, folder, layout
        self._storage = storage_base.open_storage(storage_base.StorageSpec())
        self._buffer, self._account = AlignedBuffer(), thread_accounting.ThreadAccounting()
        self._began_ns, self._began_cpu = 0, (0, 0)
        """When the present part began, on the wall clock and in the thread's CPU time and waiting for a core, in ns."""
        self.counted: Counter[str] = Counter()

    def pack(self, number: int, names: Sequence[str]) -> None:
        """Pack the images of these names into the packed file of this number; raises UserError."""
        path, row = self._layout.path(number), Counter[str]()
        self.counted, row["file"] = row, number
        row["cpu_ns"], row["storage_bytes"] = -time.process_time_ns(), -thread_accounting.process_storage_bytes()
        row["began_ns"] = self._began_ns = time.monotonic_ns()
        self._began_cpu = self._account.scheduled()
        with self._writing(path):
            writer = self._storage.create(path)
        try:
            packer: format_base.Packer = format_part(self._settings, "Packer")(writer)
            for name in names:
                sample = self._prepared(name)
                with self._writing(path):
                    packer.add(sample)
                row["images"] += 1
                row["sample_bytes"] += sample.data.nbytes
            with self._writing(path):
                if content := packer.finish():
                    side = format_part(self._settings, "Format").sides[0]  # type: ignore[attr-defined]
                    storage_base.write_whole(self._storage, side.path(self._layout, number), content, sync=False)
                writer.sync()
                writer.commit()  # the name says that all of it is on the device
        except BaseException:
            writer.discard()
            raise
        row["written_bytes"] = writer.position
        row["cpu_ns"] += time.process_time_ns()
        row["storage_bytes"] += thread_accounting.process_storage_bytes()
        row["ended_ns"] = time.monotonic_ns()

    def _prepared(self, name: str) -> format_base.PackedSample:
        path = f"{self._folder}/{name}"
        try:
            data = self._read(path)
            self._end("read")
            self.counted["read_bytes"] += len(data)
            sample = prepare(name, data, self._recipe)
            self._end("compute")
            return sample
        except (OSError, DamagedError) as error:
            reason = getattr(error, "strerror", error)
            raise UserError(f"{path} can't be packed: {reason}. Repair or remove it, {_GOES_ON}") from error

    def _read(self, path: str) -> memoryview:
        self._storage.size_bytes(path)  # raises for other than regular files: a pipe would block forever
        reader = self._storage.open(path)
        try:
            size = reader.size_bytes
            data = self._buffer.view(max(1, size))[:size]
            got = reader.read_into(data, 0)
        finally:
            reader.close()
        if got != size:
            raise DamagedError(f"it ends after {got} of {size} bytes")
        return data

    def _end(self, part: str) -> None:
        """Account for the time since the part before: one look at the kernel's accounting for the end and the begin."""
        ended_ns, (cpu_ns, cpu_wait_ns) = time.monotonic_ns(), self._account.scheduled()
        (began_cpu_ns, began_cpu_wait_ns), row = self._began_cpu, self.counted
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
                f"{path}: {error}: pack.target can't be written. Free some space "
                f"(or raise the limit on file sizes) if that is the reason, {_GOES_ON}"
            ) from error
