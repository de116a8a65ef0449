"""One packing, in a separate process that forks the packing processes: `python -m dlemu.contrib.pack.process FOLDER`.

Separate, because a program with threads, or with the memory of hours of work, should not fork hundreds of processes.
Messages go to stderr in the same form as those of `dlemu`, the figures to FOLDER/figures.json.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import IO

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from datagen.errors import ServerError, host_failure
from datagen.inspection import inspect
from datagen.owned import create_new
from datagen.registry import find
from datagen.storage.storage_base import FOLDERS, leads_elsewhere, write_whole
from dlemu.comm.cgroup_limits import limiting_groups
from dlemu.comm.environment import describe_storage
from dlemu.comm.failure import Role
from dlemu.config.dump import storage_words
from dlemu.config.schema import Workload
from dlemu.contrib.pack.analyse import PackMeasurement, compute_figures
from dlemu.contrib.pack.image_list import ImageList, check_count, choose_images_per_file, images_below
from dlemu.contrib.pack.packed_set import (
    JOURNAL_NAME,
    PackedFile,
    PackedSet,
    folders_of,
    layout_of,
    read_set,
    write_set,
)
from dlemu.contrib.pack.recipe import KINDS, import_libraries
from dlemu.contrib.pack.words import PackSettings, read_words
from dlemu.contrib.pack.worker import FIELDS, TASK, Job, work
from dlemu.extend import (
    DlemuError,
    Interrupted,
    SpaceError,
    StorageBase,
    UserError,
    interrupt_on,
    open_storage,
    write_text,
)
from dlemu.runner.crew import Worker, run_crew
from dlemu.telemetry import Scope, Task, start_recorder

FIGURES = "figures.json"
PROGRESS = "progress.json"
PACKER = Role(
    "packer",
    "use fewer processes or a smaller ahead; run the same command again: it continues after the finished files",
)
_SAMPLED_SIZES = 256
"""Number of images whose file sizes are looked up to estimate the memory of a process."""
_DECODING_FACTOR = 4
"""Memory for decoding an ordinary image, as a multiple of its file size; files read ahead come on top."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The request that `dlemu.contrib.pack.run` sends by stdin: the settings, and the folder of the packed files."""

    words: tuple[str, ...]
    target: str
    config_dir: str | None = None


def main() -> None:
    """Pack as requested on stdin; exit with the status of the failure, if any."""
    (folder,) = sys.argv[1:]
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    try:
        order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
        pack_here(order, folder)
    except DlemuError as error:
        print(f"dlemu: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except Interrupted as stop:
        sys.exit(stop.exit_status)
    except OSError as error:
        if not (failure := host_failure(error)):
            raise
        print(f"dlemu: {failure}", file=sys.stderr)
        sys.exit(UserError.exit_status)


def pack_here(order: Order, folder: str) -> None:
    """Pack the files that are missing and save the figures; raises UserError, DlemuError."""
    settings, workload = read_words(order.words, order.config_dir)
    spec = workload.storage_spec if workload is not None else FOLDERS
    storage = open_storage(spec.buffered)
    if workload is None:
        images = images_below(settings.source.rstrip("/"), order.target, settings.recipe, storage)
    else:
        train = inspect(workload.dataset, storage=spec).train
        kind = KINDS.get(f".{workload.dataset.format}", "file")
        images = ImageList(train.folder, train, kind)
        if kind == "file" and not settings.recipe.keeps:
            raise UserError(
                f"dataset.format is {workload.dataset.format}: its files hold no single images; wanted jpeg, png, "
                "tiff or npy, or encode=keep to pack files as they are"
            )
    count = check_count(settings.images, len(images), settings.source)
    _check_memory(settings, images, count, storage)
    import_libraries(settings.recipe)
    with _writing(order.target):
        packed, journal = _begin(settings, order.target, images, count, storage)
    job = Job(
        images=images,
        last_image=count,
        images_per_file=packed.images_per_file,
        recipe=settings.recipe,
        packer=settings.packer,
        format=settings.format,
        layout=layout_of(order.target, packed),
        source=replace(spec, direct=settings.odirect),
        target=spec.buffered,
        ahead=settings.ahead,
        skip_damaged=settings.skip_damaged,
    )
    with contextlib.closing(journal):
        timeout_seconds = (workload or Workload).timeout_seconds
        packing = _run(job, settings, packed, journal, storage, order.target, folder, timeout_seconds)
    done = replace(packed, complete=True, made=tuple(sorted((*packed.made, *packing.finished), key=lambda f: f.number)))
    with _writing(order.target):
        _check_sizes(done, job, storage)
        write_set(order.target, done, storage)
    with contextlib.suppress(OSError, ServerError):  # gone, or not allowed: packed.json is what counts
        storage.remove(os.path.join(order.target, JOURNAL_NAME))
    named = storage_words(workload) if workload is not None else ()
    figures = compute_figures(packing, settings, packed, done, order.target, images.ignored, named)
    write_text(folder, FIGURES, msgspec.json.encode(figures).decode())


@contextlib.contextmanager
def _writing(target: str) -> Iterator[None]:
    """Context: raise UserError where files of the packed set can't be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or target}: {error.strerror or error}: target can't be written") from error


def _check_memory(settings: PackSettings, images: ImageList, count: int, storage: StorageBase) -> None:
    """Raise SpaceError if the processes would not fit into memory, UserError for an image that is no regular file."""
    step = max(1, count // _SAMPLED_SIZES)
    try:
        sizes = list(storage.sizes(images.path(index) for index in range(0, count, step)))
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; wanted images in source, so move it elsewhere") from error
    largest = max((size for size in sizes if size is not None), default=0)
    bytes_per_process = largest * (settings.ahead + 1 + _DECODING_FACTOR)
    needed_bytes = min(settings.processes, count) * bytes_per_process
    free = psutil.virtual_memory().available
    if needed_bytes > free:
        raise SpaceError(
            f"{settings.processes} processes with images of {largest} bytes need about {needed_bytes} bytes of memory, "
            f"and {free} are free: wanted processes={max(1, free // bytes_per_process)} at most, or a smaller ahead"
        )


def _begin(
    settings: PackSettings, target: str, images: ImageList, count: int, storage: StorageBase
) -> tuple[PackedSet, _Journal]:
    """Return the packed set to make, with the files finished earlier, and its journal; raises UserError, OSError."""
    about = settings.shaping() | {"source": images.folder, "count": count}
    existing = read_set(target, storage)
    if existing is not None and existing.complete:
        raise UserError(
            f"{target} holds a packed set already: set target to an empty folder, delete it, or check it with "
            f"`dlemu pack verify target={target}`"
        )
    if existing is not None and existing.about != about:
        differing = [f"{key} was {existing.about.get(key)}, is {value}" for key, value in about.items()]
        differing = [line for line, key in zip(differing, about, strict=True) if existing.about.get(key) != about[key]]
        raise UserError(
            f"{target} holds an interrupted packing with other settings ({'; '.join(differing)}): use the same, set "
            "target to an empty folder, or delete it"
        )
    if settings.images_per_file and existing is not None and existing.images_per_file != settings.images_per_file:
        raise UserError(
            f"{target} was started with images_per_file={existing.images_per_file}, not {settings.images_per_file}: "
            "use the same, set target to an empty folder, or delete it"
        )
    images_per_file = choose_images_per_file(count, settings.processes, settings.images_per_file)
    packed = existing or PackedSet(
        about=about,
        format=settings.format,
        ending=settings.packer.ending,
        files=-(-count // images_per_file),
        images_per_file=images_per_file,
    )
    layout = layout_of(target, packed)
    if existing is None:
        _check_no_foreign_files(layout.folder, storage)
    sides = find("datagen.formats", settings.format, "Format")().sides
    for folder in folders_of(layout, sides):
        if leads_elsewhere(target, folder, storage):
            raise UserError(f"{folder} is a link, or is below one: set target to a new or an empty folder")
        storage.make_folder(folder)
        storage.remove_unfinished(folder)
    return packed, _Journal(target, packed, begun=existing is not None, storage=storage)


def _check_no_foreign_files(folder: str, storage: StorageBase) -> None:
    with contextlib.suppress(FileNotFoundError), storage.entries(folder) as entries:
        name = next((entry.name for entry in entries if not entry.name.startswith(".")), None)
        if name is not None:
            raise UserError(f"{folder} holds other files, such as {name}: set target to an empty folder")


class _Journal:
    """The settings, and a line for each finished file: what the same command continues after.

    In a folder each line is appended. An object can't be appended to: it is written at the beginning, so that what is
    there is known as an unfinished packing's, and when the packing ends; after a SIGKILL here all is packed again.
    """

    def __init__(self, target: str, packed: PackedSet, *, begun: bool, storage: StorageBase) -> None:
        self._storage, self._path = storage, os.path.join(target, JOURNAL_NAME)
        self._lines: list[PackedSet | PackedFile] = [replace(packed, made=()), *packed.made]
        self._file: IO[str] | None = None
        self._saved = 0
        path = storage.local_path(self._path)
        if path is None:
            self._put()
            return
        # never through a link, never replacing a foreign file
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW) if begun else create_new(path)
        self._file = open(opened, "a")  # noqa: SIM115  # `close` does, which callers call
        self._append("" if begun else _line(self._lines[0]))  # the last line may be incomplete

    def add(self, file: PackedFile) -> None:
        """Add a finished file. Raises OSError."""
        self._lines.append(file)
        self._append(_line(file))

    def close(self) -> None:
        """Close the file, or write the object."""
        if self._file is not None:
            self._file.close()
        elif self._saved < len(self._lines):
            with contextlib.suppress(OSError, DlemuError):  # of a server: a failure above is the one to report
                self._put()

    def _append(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()

    def _put(self) -> None:
        content = "".join(f"{_line(each)}\n" for each in self._lines).encode()
        write_whole(self._storage, self._path, content, sync=True)
        self._saved = len(self._lines)


def _line(what: PackedSet | PackedFile) -> str:
    return json.dumps(asdict(what))


def _check_sizes(packed: PackedSet, job: Job, storage: StorageBase) -> None:
    """Compare the files' sizes with the bytes that were written; raises DlemuError."""
    paths = [job.layout.path(file.number) for file in packed.made if file.samples]
    expected = [file.bytes for file in packed.made if file.samples]
    for path, size, actual in zip(paths, expected, storage.sizes(paths), strict=True):
        if size != actual:
            raise DlemuError(f"{path} has {actual} bytes where {size} were written: another program changed it")


class _TaskPipe:
    """The numbers of the files to pack, in a pipe: a process that reads 8 bytes takes one."""

    def __init__(self, files: list[int]) -> None:
        self._left = deque(files)
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def fill(self) -> None:
        """Fill the pipe, and close it after the last number. It holds more numbers than the processes take at once."""
        try:
            while self._left:
                os.write(self._write_end, TASK.pack(self._left[0]))
                self._left.popleft()
        except BlockingIOError:
            return
        self.close()

    def close(self) -> None:
        """Close the write end."""
        if self._write_end >= 0:
            os.close(self._write_end)
        self._write_end = -1


def _run(
    job: Job,
    settings: PackSettings,
    packed: PackedSet,
    journal: _Journal,
    storage: StorageBase,
    target: str,
    folder: str,
    timeout_seconds: float,
) -> PackMeasurement:
    files = packed.missing()
    if settings.evict and not settings.odirect:
        _evict([index for file in files for index in job.image_range(file)], job, storage)
    shared = mmap.mmap(-1, max(1, settings.processes * len(FIELDS) * 8))
    rows = np.frombuffer(shared, np.int64).reshape(-1, len(FIELDS))[: settings.processes]
    folders = tuple(storage.device_folders((job.images.folder, target)))
    scope = Scope(folders=folders, cpu_groups=limiting_groups())
    recorder = start_recorder(Task(scope=scope, node=0, interval_seconds=0.5), "")  # as telemetry.interval_seconds
    tasks = _TaskPipe(files)
    finished: list[PackedFile] = []
    begin_ns = 0

    def begin() -> None:
        nonlocal begin_ns
        recorder.mark(training=True)
        begin_ns = time.monotonic_ns()
        tasks.fill()

    def take(file: object) -> None:
        assert isinstance(file, PackedFile)
        tasks.fill()
        finished.append(file)
        with _writing(target):
            journal.add(file)

    def pack(worker: Worker, row: NDArray[np.int64]) -> None:
        tasks.close()
        work(worker, job, row, tasks.read_end)

    try:
        run_crew(
            pack,
            list(rows),
            PACKER,
            timeout_seconds=timeout_seconds,
            on_ready=begin,
            on_message=take,
            on_look=lambda: _write_progress(folder, rows, sum(len(job.image_range(number)) for number in files)),
        )
        ended_ns = time.monotonic_ns()
        with _writing(target):
            storage.sync(os.path.dirname(job.layout.path(0)))
        end_ns = int(rows[:, FIELDS.index("end_ns")].max()) + time.monotonic_ns() - ended_ns
        recorder.mark(training=False)
    finally:
        tasks.close()
        os.close(tasks.read_end)
        telemetry = recorder.stop()
        with contextlib.suppress(OSError, DlemuError):  # of a server: a failure above is the one to report
            storage.remove_unfinished(job.layout.folder)
    return PackMeasurement(
        rows=rows.copy(),
        begin_ns=begin_ns,
        end_ns=end_ns,
        telemetry=telemetry,
        finished=tuple(finished),
        cores=len(os.sched_getaffinity(0)),
        file_system=describe_storage(job.target, job.images.folder).file_system,
    )


def _evict(indexes: list[int], job: Job, storage: StorageBase) -> None:
    def evict(index: int) -> None:
        with contextlib.suppress(OSError):  # reading the image will report the error
            storage.evict(job.images.path(index), write_first=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(evict, indexes))


def _write_progress(folder: str, rows: NDArray[np.int64], images: int) -> None:
    done = {name: int(rows[:, FIELDS.index(name)].sum()) for name in ("images", "read_bytes")}
    with contextlib.suppress(SpaceError):
        write_text(folder, PROGRESS, json.dumps(done | {"total_images": images, "seconds": time.monotonic()}))


if __name__ == "__main__":
    main()
