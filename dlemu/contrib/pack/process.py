"""One packing: forks the processes that pack, and returns the figures."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import IO

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
from dlemu.contrib.pack.result import PackFigures
from dlemu.contrib.pack.words import PackSettings
from dlemu.contrib.pack.worker import ROW_DTYPE, TASK, Job, work
from dlemu.extend import (
    DlemuError,
    SpaceError,
    StorageBase,
    UserError,
    open_storage,
)
from dlemu.runner.crew import Worker, run_crew
from dlemu.telemetry import Scope, Task, start_recorder

PACKER = Role(
    "packer",
    "use fewer processes or a smaller ahead; run the same command again: it continues after the finished files",
)
_SAMPLED_SIZES = 256
"""Number of images whose file sizes are looked up to estimate the memory of a process."""
_DECODING_FACTOR = 4
"""Memory for decoding an ordinary image, as a multiple of its file size; files read ahead come on top."""


@dataclass(frozen=True, kw_only=True)
class PackRequest:
    """What to pack, and the folder of the packed files."""

    settings: PackSettings
    workload: Workload | None
    target: str


@dataclass(frozen=True, kw_only=True)
class PackProgress:
    """Progress of a packing; emitted about twice a second."""

    images: int
    total_images: int
    read_bytes: int


def pack_here(request: PackRequest, emit: Callable[[PackProgress], None]) -> PackFigures:
    """Pack the files that are missing; raises UserError, DlemuError."""
    try:
        return _pack(request, emit)
    except OSError as error:
        if failure := host_failure(error):
            raise UserError(failure) from error
        raise


def _pack(request: PackRequest, emit: Callable[[PackProgress], None]) -> PackFigures:
    settings, workload, target = request.settings, request.workload, request.target
    spec = workload.storage_spec if workload is not None else FOLDERS
    storage = open_storage(spec.buffered)
    if workload is None:
        images = images_below(settings.source.rstrip("/"), target, settings.recipe, storage)
    else:
        train = inspect(workload.dataset, storage=spec).train
        kind = KINDS.get(f".{workload.dataset.format}", "file")
        images = ImageList(train.folder, [train.name(number) for number in range(train.num_files)], kind)
        if kind == "file" and not settings.recipe.keeps:
            raise UserError(
                f"dataset.format is {workload.dataset.format}: its files hold no single images; wanted jpeg, png, "
                "tiff or npy, or encode=keep to pack files as they are"
            )
    count = check_count(settings.images, len(images.names), settings.source)
    _check_memory(settings, images, count, storage)
    import_libraries(settings.recipe)
    with _writing(target):
        packed, journal = _begin(settings, target, images, count, storage)
    job = Job(
        images=images,
        last_image=count,
        images_per_file=packed.images_per_file,
        settings=settings,
        layout=layout_of(target, packed),
        source=replace(spec, direct=settings.odirect),
        target=spec.buffered,
    )
    files = packed.missing()
    if settings.evict and not settings.odirect:
        _evict([index for file in files for index in job.image_range(file)], images, storage)
    with contextlib.closing(journal):
        timeout_seconds = (workload or Workload).timeout_seconds
        packing = _run(job, files, journal, storage, target, emit, timeout_seconds)
    done = replace(packed, complete=True, made=tuple(sorted((*packed.made, *packing.finished), key=lambda f: f.number)))
    with _writing(target):
        write_set(target, done, storage)
    with contextlib.suppress(OSError, ServerError):  # gone, or not allowed: packed.json is what counts
        storage.remove(os.path.join(target, JOURNAL_NAME))
    storage_overrides = storage_words(workload) if workload is not None else ()
    return compute_figures(packing, settings, packed, done, target, images.ignored, storage_overrides)


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
    if existing is not None:
        before, now = dict(existing.about), dict(about)
        if settings.images_per_file:
            before["images_per_file"], now["images_per_file"] = existing.images_per_file, settings.images_per_file
        differing = [f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key]]
        if differing:
            raise UserError(
                f"{target} holds an interrupted packing with other settings ({'; '.join(differing)}): use the same, "
                "set target to an empty folder, or delete it"
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
        with contextlib.suppress(FileNotFoundError), storage.entries(layout.folder) as entries:
            name = next((entry.name for entry in entries if not entry.name.startswith(".")), None)
            if name is not None:
                raise UserError(f"{layout.folder} holds other files, such as {name}: set target to an empty folder")
    sides = find("datagen.formats", settings.format, "Format")().sides
    for folder in folders_of(layout, sides):
        if leads_elsewhere(target, folder, storage):
            raise UserError(f"{folder} is a link, or is below one: set target to a new or an empty folder")
        storage.make_folder(folder)
        storage.remove_unfinished(folder)
    return packed, _Journal(target, packed, begun=existing is not None, storage=storage)


class _Journal:
    """The settings, and a line for each finished file: what the same command continues after.

    In a folder each line is appended. An object can't be appended to: it is written at the beginning, so that what is
    there is known as an unfinished packing's, and when the packing ends; after a SIGKILL here all is packed again.
    """

    def __init__(self, target: str, packed: PackedSet, *, begun: bool, storage: StorageBase) -> None:
        self._storage, self._path = storage, os.path.join(target, JOURNAL_NAME)
        self._lines = [json.dumps(asdict(file)) + "\n" for file in packed.made]
        self._lines.insert(0, json.dumps(asdict(replace(packed, made=()))) + "\n")
        self._file: IO[str] | None = None
        self._is_saved = True
        path = storage.local_path(self._path)
        if path is None:
            self._put()
            return
        # never through a link, never replacing a foreign file
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW) if begun else create_new(path)
        self._file = open(opened, "a", buffering=1)  # noqa: SIM115  # `close` does, which callers call
        self._file.write("\n" if begun else self._lines[0])  # the last line may be incomplete

    def add(self, file: PackedFile) -> None:
        """Add a finished file. Raises OSError."""
        line = json.dumps(asdict(file)) + "\n"
        self._lines.append(line)
        self._is_saved = False
        if self._file is not None:
            self._file.write(line)

    def close(self) -> None:
        """Close the file, or write the object."""
        if self._file is not None:
            self._file.close()
        elif not self._is_saved:
            with contextlib.suppress(OSError, DlemuError):  # of a server: a failure above is the one to report
                self._put()

    def _put(self) -> None:
        write_whole(self._storage, self._path, "".join(self._lines).encode(), sync=True)


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
    files: list[int],
    journal: _Journal,
    storage: StorageBase,
    target: str,
    emit: Callable[[PackProgress], None],
    timeout_seconds: float,
) -> PackMeasurement:
    processes = job.settings.processes
    shared = mmap.mmap(-1, processes * ROW_DTYPE.itemsize)
    rows: NDArray[np.void] = np.frombuffer(shared, ROW_DTYPE)[:processes]
    folders = tuple(storage.device_folders((job.images.folder, target)))
    scope = Scope(folders=folders, cpu_groups=limiting_groups())
    recorder = start_recorder(Task(scope=scope, node=0, interval_seconds=0.5), "")  # as telemetry.interval_seconds
    tasks = _TaskPipe(files)
    total_images = sum(len(job.image_range(number)) for number in files)
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

    def show_progress() -> None:
        progress = PackProgress(
            images=int(rows["images"].sum()),
            total_images=total_images,
            read_bytes=int(rows["read_bytes"].sum()),
        )
        emit(progress)

    def pack(worker: Worker, row: np.void) -> None:
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
            on_look=show_progress,
        )
        ended_ns = time.monotonic_ns()
        with _writing(target):
            storage.sync(os.path.dirname(job.layout.path(0)))
        end_ns = int(rows["end_ns"].max()) + time.monotonic_ns() - ended_ns
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


def _evict(indexes: list[int], images: ImageList, storage: StorageBase) -> None:
    def evict(index: int) -> None:
        with contextlib.suppress(OSError):  # reading the image will report the error
            storage.evict(images.path(index), write_first=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(evict, indexes))
