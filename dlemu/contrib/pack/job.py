"""Plans a packing and runs it on each rank: each of n ranks makes every n-th missing file, and logs a row for it.

A packed file gets its name when all of it is on the device. So after an interruption, the same command only packs the
files that do not exist yet. packed.json holds the settings; it is written first, and marked as complete at the end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar

import msgspec

from dlemu.config.overrides import override
from dlemu.config.schema import Workload
from dlemu.contrib.pack.packer import FilePacker
from dlemu.contrib.pack.recipe import import_libraries, is_image
from dlemu.contrib.pack.settings import PackSettings
from dlemu.contrib.pack.summary import COLUMNS, PackSummary, summarise
from dlemu.extend import Comm, DatasetError, Job, Notify, UserError, inspect, owned, registry, rows_job, storage_base
from dlemu.extend import layout as dataset_layout
from dlemu.results.answer_files import ANSWER_VERSION, read_answer, save_answer
from dlemu.results.live import Progress
from dlemu.results.wording import count

PACKED_NAME = "packed.json"  # training refuses the dataset until this file is marked as complete
FILES_PER_RANK = 4  # default: with several files each, all ranks finish at about the same time
MAX_IMAGES_PER_FILE = 1024  # few, as after an interruption each rank packs its unfinished file again


@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """The content of packed.json: the settings that determine the packed files, and can't change when resuming."""

    source: str
    images: int
    images_per_file: Annotated[int, msgspec.Meta(ge=1)]
    format: str
    resize: int | str
    encode: str
    complete: bool = False
    schema_version: int = ANSWER_VERSION


@dataclass(frozen=True, kw_only=True)
class PackJob(Job):
    """A planned packing."""

    settings: PackSettings
    image_paths: tuple[str, ...]  # relative to `packed.source`
    packed: PackedSet
    layout: dataset_layout.Layout
    missing_files: tuple[int, ...]  # numbers of the packed files to make

    @property
    def timeout_seconds(self) -> float:
        """Timeout of waiting for other ranks; a rank that packs less than an image a second counts as hanging."""
        return max(super().timeout_seconds, len(self.image_paths) / self.ranks)

    def images_of(self, file: int) -> tuple[str, ...]:
        """Return the paths of the images of a packed file."""
        first = file * self.packed.images_per_file
        return self.image_paths[first : first + self.packed.images_per_file]


class PackKind(rows_job.JobKind):
    """The kind of job that packs many images into a few large files."""

    name = "pack"
    prefix = "pack-"
    columns: ClassVar[Mapping[str, str]] = COLUMNS
    summary_type = PackSummary

    def complete(self, workload: Workload) -> Workload:
        settings = workload.section(PackSettings)
        if not settings.source and not workload.storage.has_paths:
            raise UserError(
                f"storage.storage_type is {workload.storage.storage_type}: dlemu pack reads and writes folders; wanted "
                "local_fs, or a mounted bucket"
            )
        settings = replace(settings, source=os.path.expanduser(settings.source), target=_target(workload))
        owned.check_usable(settings.target, "pack.target")
        return replace(workload, kinds={**workload.kinds, "pack": asdict(settings)})

    def looks_at(self, workload: Workload) -> str:
        return workload.section(PackSettings).source or workload.dataset.data_folder

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> PackJob:
        settings = workload.section(PackSettings)
        import_libraries(settings.recipe)
        source, image_paths = _images(workload, settings)
        packed = PackedSet(
            source=source,
            images=len(image_paths),
            images_per_file=settings.images_per_file or choose_images_per_file(len(image_paths), ranks),
            format=settings.format,
            resize=settings.resize,
            encode=settings.encode,
        )
        packed = _resumed(settings, packed, read_answer(settings.target, PACKED_NAME, PackedSet))
        files = -(-len(image_paths) // packed.images_per_file)
        layout = dataset_layout.Layout(  # names files like those of a dataset, so that training finds them
            folder=os.path.join(settings.target, "train"),
            split="train",
            num_files=files,
            num_samples_per_file=packed.images_per_file,
            extension=registry.find("datagen.formats", settings.format, "Packer").ending,
            named_files=files,
        )
        job = super().plan(workload, ranks, wants_verdict=wants_verdict)
        return PackJob(
            **vars(job),
            settings=settings,
            image_paths=tuple(image_paths),
            packed=packed,
            layout=layout,
            missing_files=tuple(number for number in range(files) if not os.path.isfile(layout.path(number))),
        )

    def begin(self, job: PackJob) -> None:
        """Claim the names of all packed files and side files in the target; write packed.json if the set is new."""
        target = job.settings.target
        owned.take_folder(target, "pack.target")
        numbers = range(job.layout.num_files)
        names_by_folder = {job.layout.folder: [job.layout.name(number) for number in numbers]}
        for side in registry.find("datagen.formats", job.settings.format, "Format").sides:
            paths = [side.path(job.layout, number) for number in numbers]
            names_by_folder[os.path.dirname(paths[0])] = [os.path.basename(path) for path in paths]
        is_new = not os.path.lexists(os.path.join(target, PACKED_NAME))
        for folder in names_by_folder:  # refuse links and other files before any name is claimed
            if os.path.realpath(folder) != os.path.join(os.path.realpath(target), os.path.relpath(folder, target)):
                raise UserError(f"{folder} is a link, or is below one: set pack.target to a new or an empty folder")
            foreign = [name for name in os.listdir(folder) if name[0] != "."] if os.path.isdir(folder) else []
            if is_new and foreign:
                raise UserError(f"{folder} holds other files, such as {foreign[0]}: set pack.target to an empty folder")
        with _target_errors(target):
            owned.claim(target, PACKED_NAME)
            for folder, names in names_by_folder.items():
                parent = target
                for subfolder in os.path.relpath(folder, target).split(os.sep):
                    owned.claim(parent, f"{subfolder}/")
                    parent = os.path.join(parent, subfolder)
                    os.makedirs(parent, exist_ok=True)
                owned.claim(folder, *names)
        if is_new:
            save_answer(target, PACKED_NAME, job.packed)
        storage_base.open_storage(storage_base.StorageSpec()).remove_unfinished(job.layout.folder)

    def watched_folders(self, job: PackJob) -> Iterator[str]:
        yield from (job.packed.source, job.settings.target)

    def measure(self, job: PackJob, comm: Comm, log: rows_job.RowLog, notify: Notify | None) -> None:
        storage = storage_base.open_storage(storage_base.StorageSpec())
        files = job.missing_files[comm.rank :: job.ranks]
        if job.settings.evict:
            for file in files:
                for path in job.images_of(file):
                    with contextlib.suppress(OSError):  # reading the image will report the error
                        storage.evict(f"{job.packed.source}/{path}", write_first=True)
        packer = FilePacker(job.settings, job.packed.source, job.layout)
        set_columns = {"set_images": len(job.image_paths), "images_per_file": job.packed.images_per_file}
        comm.all_reduce_max(0)  # a barrier: all ranks begin at the same time
        for number, file in enumerate(files, start=1):
            log.add(rank=comm.rank, **set_columns, **packer.pack(file, job.images_of(file)))
            if notify is not None:
                notify(Progress(at=f"{number} of {count(len(files), 'file')} of rank 0", done=number, total=len(files)))
        comm.all_reduce_max(0)
        if comm.rank == 0:
            with _target_errors(job.layout.folder):
                storage.sync(job.layout.folder)
            save_answer(job.settings.target, PACKED_NAME, replace(job.packed, complete=True))

    def clean_up(self, job: PackJob) -> str:
        with contextlib.suppress(OSError):
            storage_base.open_storage(storage_base.StorageSpec()).remove_unfinished(job.layout.folder)
        return ""

    def summarise(self, run: rows_job.RowsRun) -> PackSummary:
        return summarise(run)

    @contextlib.contextmanager
    def own_place(self, workload: Workload, run_folder: str) -> Iterator[Sequence[str]]:
        """Yield overrides that give a run of a sweep its own subfolder of the target, and remove it at the end."""
        target = _target(workload)
        missing = owned.missing_folders(target)
        subfolder = os.path.join(target, f"{os.path.basename(run_folder)}-{secrets.token_hex(4)}")
        try:
            yield (override(("pack", "target"), subfolder),)
        finally:
            owned.remove_claimed(subfolder)
            owned.OwnFolder(target, missing, marked=False).drop()


JOB = PackKind()


def _target(workload: Workload) -> str:
    settings = workload.section(PackSettings)
    beside = os.path.join(settings.source or workload.dataset.data_folder, "packed")
    return os.path.expanduser(settings.target or beside)


@contextlib.contextmanager
def _target_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: {error}: pack.target can't be written") from error


def _images(workload: Workload, settings: PackSettings) -> tuple[str, list[str]]:
    """Return the folder of the images to pack, and their paths in it; raises UserError, DatasetError."""
    if settings.source:
        folder = settings.source.rstrip("/")
        paths = images_below(folder, only_images=not settings.recipe.keeps)
    else:
        train = inspect(workload.dataset, storage=workload.storage_spec).train
        folder, paths = train.folder, [train.name(number) for number in range(train.num_files)]
        if not settings.recipe.keeps and not all(map(is_image, paths)):
            raise UserError(
                f"dataset.format is {workload.dataset.format}: its files hold no single images; wanted jpeg, png or "
                "tiff, or pack.encode=keep to pack files as they are"
            )
    if settings.images > len(paths):
        raise UserError(f"pack.images is {settings.images}, but there are {len(paths)}: lower it")
    return folder, paths[: settings.images or None]


def images_below(folder: str, *, only_images: bool) -> list[str]:
    """Return the relative paths of the files below a folder, sorted; with `only_images`, those with an image's ending.

    Hidden files and packed sets, among them `pack.target`, are omitted. Raises DatasetError if no file remains.
    """
    paths: list[str] = []
    for parent, dirs, files in os.walk(folder, onerror=_raise_unlisted, followlinks=True):
        dirs[:] = [name for name in dirs if name[0] != "." and not os.path.lexists(f"{parent}/{name}/{PACKED_NAME}")]
        paths += [os.path.join(parent, name)[len(folder) + 1 :] for name in files if not name.startswith(".")]
    images = sorted(path for path in paths if not only_images or is_image(path))
    if not images:
        content = f"{len(paths)} files, none of them .jpeg, .png or .tiff" if paths else "no files"
        raise DatasetError(
            f"{folder} holds {content}: set pack.source to a folder of images, or pack.encode=keep to pack any file"
        )
    return images


def _raise_unlisted(error: OSError) -> None:
    raise DatasetError(f"{error.filename}: {error.strerror}: wanted a folder of files to pack") from error


def choose_images_per_file(images: int, ranks: int) -> int:
    """Return the number of images per packed file with which each rank makes about FILES_PER_RANK files.

    Training needs files with equal numbers of images, so a divisor of `images` within a factor of 2 is preferred.
    Example: 1000 images on 2 ranks -> 125, in 8 files; 1002 images -> 167, in 6 files.
    """
    ideal = max(1, min(images // (FILES_PER_RANK * ranks), MAX_IMAGES_PER_FILE))
    candidates = range(-(-ideal // 2), min(2 * ideal, MAX_IMAGES_PER_FILE) + 1)
    divisors = (number for number in candidates if images % number == 0)
    return min(divisors, key=lambda number: abs(number - ideal), default=ideal)


def _resumed(settings: PackSettings, packed: PackedSet, existing: PackedSet | None) -> PackedSet:
    """Return the set to make, which continues `existing`, if any; raises UserError if that is complete or differs."""
    target = settings.target
    if existing is None:
        return packed
    if existing.complete:
        raise UserError(f"{target} holds a packed set already: set pack.target to an empty folder, or delete it")
    if not settings.images_per_file:
        packed = replace(packed, images_per_file=existing.images_per_file)
    old = asdict(existing)
    differences = [f"{key} was {old[key]}, is {new}" for key, new in asdict(packed).items() if old[key] != new]
    if differences:
        raise UserError(
            f"{target} holds an interrupted packing with other settings ({'; '.join(differences)}): use the same, set "
            "pack.target to an empty folder, or delete it"
        )
    return packed
