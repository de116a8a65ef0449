"""Checks workloads: possible values (`check`), what can be trained (`check_runnable`) and made (`check_data`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath

from datagen.errors import UserError
from datagen.registry import companion, is_dotted, names
from datagen.settings import problems
from datagen.spec import build, joined_problems
from datagen.storage.storage_base import FOLDER_TYPES, open_storage
from dlemu.config.duration import is_zero
from dlemu.config.schema import Model, Workload
from dlemu.config.sections import sections
from dlemu.config.translate import LOADERS, SettingTraits
from dlemu.config.workload_files import nearest


def check(workload: Workload) -> None:
    known = sections() if workload.kinds else {}
    own = {name: build(known[name], section, name) for name, section in workload.kinds.items() if name in known}
    _refuse([*problems(workload), *problems(own), *_table_problems(workload)])


def check_data_folder(workload: Workload) -> None:
    _refuse(list(_folder_problems(workload, "dataset.data_folder", workload.dataset.data_folder)))


def check_model_name(name: str) -> None:
    """Raise UserError for a model name that can't be the name of a folder of results (results/NAME)."""
    if name in ("", ".", "..") or os.sep in name or "\0" in name:
        raise UserError(f"model.name is {name!r}: wanted a name without /, which can name the folder of its results")


def check_runnable(workload: Workload) -> None:
    _refuse(
        [
            *_scope_problems(workload),
            *_data_problems(workload),
            *_checkpoint_problems(workload),
            *_name_problems("train.compute", workload.train.compute, "dlemu.accelerators"),
            *_loader_problems(workload),
            *_reader_problems(workload),
            *_library_problems(workload),
            *workload.unsupported,
        ]
    )


def check_checkpoints(workload: Workload) -> None:
    """Raise a single UserError that lists all that prevents only writing and reading checkpoints."""
    settings = workload.checkpoint
    problems = [
        *_storage_problems(workload),
        *_folder_problems(workload, "checkpoint.checkpoint_folder", settings.checkpoint_folder),
        *_name_problems("checkpoint.format", settings.format, "dlemu.checkpoints.formats"),
        *_moving_problems(workload),
        *workload.unsupported,
    ]
    if not workload.model.has_size:
        problems.append(
            f"workload {workload.model.name!r} does not say how large a model's checkpoint is: wanted a workload that"
            " does, as in `dlemu checkpoint workload=llama3_8b scale=laptop` (`dlemu workloads` lists them), or"
            f" its bytes in model.model_size_bytes, other than the default of {Model.model_size_bytes:,}"
        )
    if max(settings.num_checkpoints_write, settings.num_checkpoints_read) < 1:
        problems.append(
            "checkpoint.num_checkpoints_write and num_checkpoints_read are both 0: wanted 1 or more for at least one"
        )
    _refuse(problems)


def _moving_problems(workload: Workload) -> Iterator[str]:
    settings = workload.checkpoint
    if settings.transfer_size % 4096:
        yield f"checkpoint.transfer_size is {settings.transfer_size}: wanted a multiple of 4096"
    for name in ("writers", "readers"):
        if getattr(settings, name) * settings.transfer_size > 128 << 20:
            yield (
                f"checkpoint.{name} is {getattr(settings, name)} with a checkpoint.transfer_size of "
                f"{settings.transfer_size}: wanted at most 128 MiB for their product, the limit of a rank's buffers"
            )
    if settings.odirect and settings.read_as == "torch_load":
        yield (
            "checkpoint.odirect is true with read_as=torch_load, which reads tensors where they begin: wanted "
            "read_as=fast or mlperf_v3, or odirect=false"
        )
    if settings.recovery_rank_shift and settings.reshard:
        yield "checkpoint.recovery_rank_shift and checkpoint.reshard are both true: wanted one of them"


def check_data(workload: Workload) -> None:
    _refuse(_data_problems(workload))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError(joined_problems(problems))


def _data_problems(workload: Workload) -> list[str]:
    return [
        *_storage_problems(workload),
        *_folder_problems(workload, "dataset.data_folder", workload.dataset.data_folder),
        *_name_problems("dataset.format", workload.dataset.format, "datagen.formats"),
    ]


def _table_problems(workload: Workload) -> Iterator[str]:
    choices = (
        ("accelerator", workload.accelerator, list(workload.accelerators)),
        ("scale", workload.scale, [*filter(None, workload.scales)]),
    )
    for key, name, known in choices:
        if name and name not in known:
            yield f"{key} is {name!r}: wanted one of {', '.join(known) or 'none: the workload has no such table'}"


def _scope_problems(workload: Workload) -> Iterator[str]:
    if not workload.workflow.train:
        asked = [name for name in ("generate_data", "checkpoint") if getattr(workload.workflow, name)]
        commands = {"generate_data": "dlemu datagen", "checkpoint": "dlemu checkpoint"}
        advice = " or ".join(f"run {commands[name]}" for name in asked)
        yield (
            "workflow.train is false: nothing would be trained, the workload requests "
            f"{' and '.join(asked) or 'nothing'}; {f'{advice}, or ' if advice else ''}set workflow.train=true"
        )


def _storage_problems(workload: Workload) -> Iterator[str]:
    storage, reader = workload.storage, workload.reader
    if storage.storage_type == "aistore":
        yield (
            "storage.storage_type is 'aistore': wanted s3, with the address of AIStore's S3 interface "
            "(http://HOST:PORT/s3 is not accepted: use a proxy that serves it at the root), or your own module"
        )
        return
    try:
        kind = workload.storage_spec
        if storage.storage_type not in FOLDER_TYPES:
            opened = open_storage(kind)
            if opened.is_remote and reader.transfer_size:
                yield (
                    f"reader.transfer_size is {reader.transfer_size}: an object is read by requests; wanted "
                    "reader.range_bytes, the size of one"
                )
    except UserError as error:
        yield str(error)
        return
    for key, default in (("range_bytes", 0), ("io_depth", 1)):
        if storage.storage_type in FOLDER_TYPES and getattr(reader, key) != default:
            yield (
                f"reader.{key} is {getattr(reader, key)}, but storage.storage_type={storage.storage_type} has files, "
                "which a worker reads by one call at a time: leave it out, and set reader.read_threads"
            )


def _library_problems(workload: Workload) -> Iterator[str]:
    """Yield why `reader.engine=library` can't read: a library has no O_DIRECT, nor object stores, nor others' files."""
    if workload.reader.engine == "library" and workload.reader.odirect:
        yield (
            "reader.engine=library reads files through the page cache, which reader.odirect=true bypasses: "
            "leave reader.engine out, or set reader.odirect=false"
        )
    if workload.reader.engine == "library" and workload.dataset.source == "folder":
        from datagen.own_folder import FLAT

        if workload.dataset.format in FLAT:
            yield (
                f"reader.engine is 'library', which reads {workload.dataset.format} by its index, and files of your own"
                " have none; wanted 'matched'"
            )
    if workload.reader.engine != "library" or workload.storage.storage_type in FOLDER_TYPES:
        return
    try:
        open_storage(workload.storage_spec).check_library()
    except UserError as error:
        if not list(_storage_problems(workload)):  # otherwise it is already listed
            yield str(error)


def _folder_problems(workload: Workload, key: str, folder: str) -> Iterator[str]:
    if "://" in folder and workload.storage.storage_type in FOLDER_TYPES:
        kind = "s3" if folder.startswith("s3://") else "fsspec"
        yield (
            f"{key} is {folder!r}, a URL, and storage.storage_type is for folders: wanted storage.storage_type={kind}, "
            "or a folder of a mounted file system"
        )


def _checkpoint_problems(workload: Workload) -> Iterator[str]:
    if workload.workflow.checkpoint:
        folder, data = workload.checkpoint.checkpoint_folder, workload.dataset.data_folder
        yield from _folder_problems(workload, "checkpoint.checkpoint_folder", folder)
        if workload.checkpoint.keep_last:
            yield (
                f"checkpoint.keep_last is {workload.checkpoint.keep_last}: training keeps all its checkpoints, as DLIO "
                "does; wanted 0"
            )
        if workload.dataset.source == "folder" and _is_inside(folder, data):
            yield (
                f"checkpoint.checkpoint_folder {folder} is in dataset.data_folder, and dlemu writes nothing among files"
                " of your own: wanted another folder"
            )


def _is_inside(path: str, folder: str) -> bool:
    inner, outer = (each if "://" in each else os.path.realpath(each) for each in (path, folder))
    return PurePath(inner).is_relative_to(outer)


def _loader_problems(workload: Workload) -> list[str]:
    unknown = list(_name_problems("reader.data_loader", workload.reader.data_loader, LOADERS))
    if unknown:
        return unknown
    traits: type[SettingTraits] | None = companion(LOADERS, workload.reader.data_loader, "Traits")
    return [] if traits is None else traits().problems(workload)


def _reader_problems(workload: Workload) -> Iterator[str]:
    reader, train, percent = workload.reader, workload.train, workload.reader.page_cache_percent
    if reader.verify and workload.dataset.format == "synthetic":
        yield (
            "reader.verify is true, but files of format synthetic are not read; wanted reader.verify=false, or another"
            " dataset.format"
        )
    if not is_zero(train.step_cpu_time) and is_zero(train.computation_time):
        yield (
            "train.step_cpu_time is part of a step, and train.computation_time, the whole step, is 0: wanted the time"
            " that a step takes on an idle host"
        )
    if bool(reader.tensors) != bool(reader.tensor_bytes):
        yield (
            f"reader.tensors is {reader.tensors}, and reader.tensor_bytes is {reader.tensor_bytes}: wanted both, or "
            "neither"
        )
    if percent and reader.evict_page_cache == "never":
        yield (
            f"reader.page_cache_percent is {percent:g}, of a dataset that reader.evict_page_cache=never leaves in the"
            " page cache as it is; wanted 'start' or 'epochs'"
        )
    if percent and (reader.odirect or workload.storage.storage_type not in FOLDER_TYPES):
        yield f"reader.page_cache_percent is {percent:g}, but these reads bypass the page cache; wanted 0"
    if reader.evict_page_cache == "epochs" and workload.dataset.format == "mmap_indexed_binary":
        yield (
            "reader.evict_page_cache is 'epochs', but mmap_indexed_binary's readers keep their files mapped and the"
            " kernel keeps mapped pages; wanted 'start', or dataset.format=indexed_binary"
        )


def _name_problems(key: str, name: str, package: str) -> Iterator[str]:
    known = names(package)
    if is_dotted(name):
        try:
            companion(package, name, "")
        except UserError as error:
            yield f"{key}: {error}"
    elif name not in known:
        listed = ", ".join(known)
        yield f"{key} is {name!r}: {nearest(name, known)}wanted one of {listed}, or the dotted name of your own module"
