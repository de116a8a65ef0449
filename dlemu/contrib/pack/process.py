"""One packing: checks what is to be packed, forks the processes that pack, and returns the figures.

A packed file gets its name when all of it is on the device, so that the names tell an interrupted packing where to go
on. packed.json has the settings; it is written before the first file, and again, as complete, after the last.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from datagen.errors import host_failure
from datagen.inspection import inspect
from datagen.layout import Layout
from datagen.manifest import PACKED_NAME
from datagen.owned import claim, remove_claimed
from dlemu.comm.cgroup_limits import limiting_groups
from dlemu.comm.environment import describe_storage
from dlemu.comm.failure import Role
from dlemu.config.schema import Workload
from dlemu.contrib.pack.analyse import PackMeasurement, compute_figures, train_command
from dlemu.contrib.pack.recipe import import_libraries, is_image
from dlemu.contrib.pack.result import PackFigures
from dlemu.contrib.pack.settings import PackSettings
from dlemu.contrib.pack.worker import ROW_DTYPE, TASK, Job, work
from dlemu.extend import DatasetError, StorageSpec, UserError, open_storage, take_folder
from dlemu.report.units import size
from dlemu.results.answer_files import ANSWER_VERSION, read_answer, save_answer
from dlemu.results.progress import Progress
from dlemu.results.wording import count
from dlemu.runner.crew import Worker, run_crew
from dlemu.telemetry import Scope, Task, start_recorder

FILES_PER_PROCESS = 4
"""Default number of packed files per process: with several each, all processes finish at about the same time."""
MAX_IMAGES_PER_FILE = 1024  # after an interruption, each process repeats at most one file: keep it small
PACKER = Role("packer", "use fewer processes; run the same command again: it continues after the finished files")


@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """The content of packed.json: the settings that determine the packed files; resuming with others is refused."""

    source: str
    images: int
    images_per_file: Annotated[int, msgspec.Meta(ge=1)]
    format: str
    resize: str
    encode: str
    sweep: str = ""
    """Folder of the results of a sweep, which removes the packed files of its points."""
    complete: bool = False
    schema_version: int = ANSWER_VERSION


def pack_here(settings: PackSettings, emit: Callable[[Progress], None], *, sweep: str = "") -> PackFigures:
    """Pack the files that are missing in `settings.target`; raises UserError, DlemuError."""
    target = settings.target
    folder, names, warnings = _images(settings)
    import_libraries(settings.recipe)
    storage = open_storage(StorageSpec())
    try:
        packed, layout = _begin(settings, folder, len(names), sweep)
        storage.remove_unfinished(layout.folder)
        job = Job(folder=folder, names=names, images_per_file=packed.images_per_file, settings=settings, layout=layout)
        files = [number for number in range(layout.num_files) if not os.path.isfile(layout.path(number))]
        missing = [name for number in files for name in job.images_of(number)]
        for name in missing if settings.evict else ():
            with contextlib.suppress(OSError):  # reading the image will report the error
                storage.evict(f"{folder}/{name}", write_first=True)
        measured = _run(job, files, emit)
        samples, sample_bytes = measured.total("images"), measured.total("sample_bytes")
        if not samples:  # an earlier run packed all: the files' own size is near
            samples = len(names)
            sample_bytes = sum(os.path.getsize(layout.path(number)) for number in range(layout.num_files))
    except OSError as error:
        raise UserError(host_failure(error) or f"{error.filename or target}: {error.strerror or error}") from error
    save_answer(target, PACKED_NAME, replace(packed, complete=True))
    return compute_figures(
        measured,
        images=len(names),
        kept_images=len(names) - len(missing),
        images_per_file=packed.images_per_file,
        train=train_command(target, settings.format, len(names), packed.images_per_file, sample_bytes // samples),
        warnings=warnings,
    )


def _images(settings: PackSettings) -> tuple[str, list[str], list[str]]:
    """Return a folder, the paths of the images below it, and warnings; raises UserError, DatasetError."""
    workload, keeps, warnings = settings.workload, settings.recipe.keeps, []
    if workload is None:
        folder = settings.source
        names, ignored = images_below(folder, settings.target, only_images=not keeps)
        if ignored:
            warnings.append(f"{folder}: left out {count(ignored, 'file')} whose names are not those of images")
    else:
        train = inspect(workload.dataset, storage=workload.storage_spec).train
        folder, names = train.folder, [train.name(number) for number in range(train.num_files)]
        if not keeps and not all(map(is_image, names)):
            raise UserError(
                f"dataset.format is {workload.dataset.format}: its files hold no single images; wanted jpeg, png or "
                "tiff, or encode=keep to pack files as they are"
            )
    if settings.images > len(names):
        more = f", or make more with dataset.num_files_train={settings.images} and --make" if workload else ""
        raise UserError(f"images is {settings.images}, but there are {len(names)}: lower it{more}")
    return folder, names[: settings.images or None], warnings


def images_below(folder: str, target: str, *, only_images: bool) -> tuple[list[str], int]:
    """Return the paths of the files below a folder, sorted, and how many were left out, as they are no images.

    Hidden files and the folder `target` are not counted. Raises DatasetError if no file remains.
    """
    names: list[str] = []
    for place, folders, files in os.walk(folder, onerror=_unlisted, followlinks=True):
        paths = {name: os.path.join(place, name) for name in (*folders, *files) if not name.startswith(".")}
        folders[:] = [name for name in folders if os.path.abspath(paths.get(name, target)) != os.path.abspath(target)]
        names += [paths[name][len(folder) + 1 :] for name in files if name in paths]
    chosen = sorted(name for name in names if not only_images or is_image(name))
    if not chosen:
        seen = f"{len(names)} files, none of them .jpeg, .png or .tiff" if names else "no files"
        raise DatasetError(f"{folder} holds {seen}: set source to a folder of images, or encode=keep to pack any file")
    return chosen, len(names) - len(chosen)


def _unlisted(error: OSError) -> None:
    raise DatasetError(f"{error.filename}: {error.strerror}: wanted a folder of files to pack") from error


def choose_images_per_file(images: int, processes: int) -> int:
    """Return the number of images per packed file that gives FILES_PER_PROCESS files per process.

    Training needs files of equal length, so a number within a factor of 2 that divides the images is preferred.
    """
    target = max(1, min(images // (FILES_PER_PROCESS * processes), MAX_IMAGES_PER_FILE))
    near = range(-(-target // 2), min(2 * target, MAX_IMAGES_PER_FILE) + 1)
    even = (number for number in near if images % number == 0)
    return min(even, key=lambda number: abs(number - target), default=target)


def _begin(settings: PackSettings, source: str, images: int, sweep: str) -> tuple[PackedSet, Layout]:
    """Return the packed set to make or to go on with, its folders made; raises UserError, SpaceError, OSError."""
    target = settings.target
    packed = PackedSet(
        source=source,
        images=images,
        images_per_file=settings.images_per_file or choose_images_per_file(images, settings.processes),
        format=settings.format,
        resize=settings.resize,
        encode=settings.encode,
        sweep=sweep,
    )
    existing = read_answer(target, PACKED_NAME, PackedSet)
    if existing is not None:
        if existing.complete:
            raise UserError(f"{target} holds a packed set already: set target to an empty folder, or delete it")
        if not settings.images_per_file:
            packed = replace(packed, images_per_file=existing.images_per_file)
        if differing := [
            f"{key} was {was}, is {now}" for key, now in vars(packed).items() if (was := vars(existing)[key]) != now
        ]:
            raise UserError(
                f"{target} holds an interrupted packing with other settings ({'; '.join(differing)}): use the same, "
                "set target to an empty folder, or delete it"
            )
    files = -(-images // packed.images_per_file)
    layout = Layout(  # named like a dataset's, so that a training run finds them
        folder=os.path.join(target, "train"),
        split="train",
        num_files=files,
        num_samples_per_file=packed.images_per_file,
        extension=settings.packer.ending,
        named_files=files,
    )
    take_folder(target, "target")
    numbers = range(files)
    names_in = {layout.folder: [layout.name(number) for number in numbers]}
    for side in settings.format_type.sides:
        paths = [side.path(layout, number) for number in numbers]
        names_in[os.path.dirname(paths[0])] = [os.path.basename(path) for path in paths]
    for folder, names in names_in.items():
        if os.path.realpath(folder) != os.path.join(os.path.realpath(target), os.path.relpath(folder, target)):
            raise UserError(f"{folder} is a link, or is below one: set target to a new or an empty folder")
        if existing is None and os.path.isdir(folder):
            there = [name for name in os.listdir(folder) if not name.startswith(".")]
            if there:
                raise UserError(f"{folder} holds other files, such as {there[0]}: set target to an empty folder")
        parent = target
        for part in os.path.relpath(folder, target).split(os.sep):
            claim(parent, f"{part}/")  # so that a sweep may remove them
            parent = os.path.join(parent, part)
            os.makedirs(parent, exist_ok=True)
        if sweep:
            claim(folder, *names)
    if sweep:
        claim(target, PACKED_NAME)
    if existing is None:
        save_answer(target, PACKED_NAME, packed)
    return packed, layout


def remove_point(target: str, sweep: str) -> None:
    """Remove what a point of this sweep packed, and only that; raises UserError for another packed.json."""
    packed = read_answer(target, PACKED_NAME, PackedSet)
    if packed is not None and packed.sweep == sweep:
        with contextlib.suppress(OSError):
            open_storage(StorageSpec()).remove_unfinished(os.path.join(target, "train"))
        remove_claimed(target)


def _run(job: Job, files: list[int], emit: Callable[[Progress], None]) -> PackMeasurement:
    processes, storage = job.settings.processes, open_storage(StorageSpec())
    images = sum(len(job.images_of(number)) for number in files)
    shared = mmap.mmap(-1, processes * ROW_DTYPE.itemsize)
    rows: NDArray[np.void] = np.frombuffer(shared, ROW_DTYPE)[:processes]
    scope = Scope(folders=(job.folder, job.settings.target), cpu_groups=limiting_groups())
    recorder = start_recorder(Task(scope=scope, node=0, interval_seconds=0.5), "")  # as telemetry.interval_seconds
    tasks = _open_tasks(files)
    timeout_seconds = (job.settings.workload or Workload).timeout_seconds
    begin_ns = 0

    def begin() -> None:
        nonlocal begin_ns
        recorder.mark(training=True)
        begin_ns = time.monotonic_ns()

    def show_progress() -> None:
        packed, read_bytes = (int(rows[name].sum()) for name in ("images", "read_bytes"))
        emit(Progress(at=f"{packed} of {images} images, {size(read_bytes)} read", done=packed, total=images))

    def pack(worker: Worker, row: np.void) -> None:
        work(worker, job, row, tasks)

    try:
        run_crew(pack, list(rows), PACKER, timeout_seconds=timeout_seconds, on_ready=begin, on_look=show_progress)
        ended_ns = time.monotonic_ns()
        storage.sync(job.layout.folder)
        end_ns = int(rows["end_ns"].max()) + time.monotonic_ns() - ended_ns
        recorder.mark(training=False)
    finally:
        os.close(tasks)
        telemetry = recorder.stop()
        with contextlib.suppress(OSError):
            storage.remove_unfinished(job.layout.folder)
    return PackMeasurement(
        rows=rows.copy(),
        begin_ns=begin_ns,
        end_ns=end_ns,
        telemetry=telemetry,
        cores=len(os.sched_getaffinity(0)),
        file_system=describe_storage(StorageSpec(), job.folder).file_system,
    )


def _open_tasks(files: list[int]) -> int:
    """Return a file in memory with the numbers of the files to pack; all processes read it, each number once.

    It is opened by its path, as the kernel then makes reading and moving on one step (FMODE_ATOMIC_POS).
    """
    written = os.memfd_create("dlemu-tasks")
    try:
        os.pwritev(written, [b"".join(map(TASK.pack, files))], 0)
        return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(written)
