"""Checks that involve several settings of a workload; the range of a single setting is declared at its field.

Every workload must pass `check`; making data, training and checkpoint runs each have a further check.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath

from datagen.errors import UserError
from datagen.registry import companion, is_dotted, names, nearest
from datagen.regular import check_local
from datagen.settings import problems
from datagen.spec import build, refuse
from datagen.storage.storage_base import local_folder, open_storage
from dlemu.config.duration import is_zero
from dlemu.config.schema import Model, Workload, sections
from dlemu.config.translate import LOADERS, MODULES


def check(workload: Workload) -> None:
    """Raise UserError for values that are invalid in every run."""
    messages = list(problems(workload))
    for name, values in workload.kinds.items():
        if section := sections().get(name):
            messages += problems(build(section, values, name), name)
    refuse(messages)


def check_folder(workload: Workload, key: str, folder: str) -> None:
    """Raise UserError if the setting `key` has a URL as its folder, unless the storage takes URLs."""
    if workload.storage.has_paths:
        storage_type = "s3" if folder.startswith("s3:") else "fsspec"
        check_local(folder, key, other=f"storage.storage_type={storage_type}, or ")


def check_model_name(name: str) -> None:
    """Raise UserError for a model name that can't name a folder of results (results/NAME)."""
    if name in ("", ".", "..") or os.sep in name or "\0" in name:
        raise UserError(f"model.name is {name!r}: wanted a name without /, which can name the folder of its results")


def check_data(workload: Workload) -> None:
    """Raise UserError for a dataset that can't be made."""
    refuse(_data_problems(workload))


def check_runnable(workload: Workload) -> None:
    """Raise UserError for a workload that can't train."""
    training_problems = [*_training_problems(workload), *_reader_problems(workload)]
    refuse([*_data_problems(workload), *training_problems, *workload.unsupported])


def check_checkpoints(workload: Workload) -> None:
    """Raise UserError for a workload that can't write and read checkpoints alone."""
    refuse([*_checkpoint_problems(workload), *workload.unsupported])


def _data_problems(workload: Workload) -> Iterator[str]:
    yield from _storage_problems(workload)
    yield from _folder_problems(workload, "dataset.data_folder", workload.dataset.data_folder)
    yield from _name_problems(workload, "dataset", "format")


def _checkpoint_problems(workload: Workload) -> Iterator[str]:
    settings = workload.checkpoint
    yield from _storage_problems(workload)
    yield from _folder_problems(workload, "checkpoint.checkpoint_folder", settings.checkpoint_folder)
    yield from _name_problems(workload, "checkpoint", "format")
    if not workload.model.has_size:
        yield (
            f"workload {workload.model.name!r} does not say how large a model's checkpoint is: wanted a workload that"
            " does, as in `dlemu checkpoint workload=llama3_8b scale=laptop`, or model.model_size_bytes, other than"
            f" the default of {Model.model_size_bytes:,}"
        )
    if max(settings.num_checkpoints_write, settings.num_checkpoints_read) < 1:
        yield "checkpoint.num_checkpoints_write and num_checkpoints_read are both 0: wanted 1 or more for at least one"
    for name in ("writers", "readers"):
        if (buffers_bytes := getattr(settings, name) * settings.transfer_size) > 128 << 20:  # limit of a rank's buffers
            yield f"checkpoint.{name} x checkpoint.transfer_size is {buffers_bytes}: wanted at most 128 MiB"
    if settings.odirect and settings.read_as == "torch_load":
        yield "checkpoint.odirect is true, but read_as=torch_load reads tensors where they begin: wanted read_as=fast"


def _storage_problems(workload: Workload) -> Iterator[str]:
    reader = workload.reader
    try:
        opened = open_storage(workload.storage_spec)
        cuts, is_local = opened.cuts_reads, not opened.is_remote
        for key, default, is_used in (("range_bytes", 0, cuts), ("io_depth", 1, cuts), ("transfer_size", 0, is_local)):
            if not is_used and (value := getattr(reader, key)) != default:
                yield f"reader.{key} is {value}, which {workload.storage.storage_type} does not use: leave it out"
        if reader.engine == "library":
            local_folder(opened, workload.dataset.data_folder, "reader.engine=library")
    except UserError as error:
        yield str(error)


def _folder_problems(workload: Workload, key: str, folder: str) -> Iterator[str]:
    try:
        check_folder(workload, key, folder)
    except UserError as error:
        yield str(error)


def _training_problems(workload: Workload) -> Iterator[str]:
    data, train = workload.dataset, workload.train
    if not workload.workflow.train:
        yield "workflow.train is false: nothing would be trained; set workflow.train=true, or run `dlemu datagen`"
    if workload.workflow.checkpoint:
        key, folder = "checkpoint.checkpoint_folder", workload.checkpoint.checkpoint_folder
        yield from _folder_problems(workload, key, folder)
        if keep_last := workload.checkpoint.keep_last:
            yield f"checkpoint.keep_last is {keep_last}: training keeps all its checkpoints, as DLIO does; wanted 0"
        if data.source == "folder":
            inner, outer = (path if "://" in path else os.path.realpath(path) for path in (folder, data.data_folder))
            if PurePath(inner).is_relative_to(outer):
                yield f"{key} {folder}: dlemu writes nothing among files of your own; set another"
    if not is_zero(train.step_cpu_time) and is_zero(train.computation_time):
        yield "train.step_cpu_time is part of train.computation_time, which is 0: wanted the time of a whole step"


def _reader_problems(workload: Workload) -> Iterator[str]:
    data, reader = workload.dataset, workload.reader
    if bool(reader.tensors) != bool(reader.tensor_bytes):
        yield f"reader.tensors is {reader.tensors}, reader.tensor_bytes {reader.tensor_bytes}: wanted both, or neither"
    if reader.engine == "library":
        if reader.odirect:
            yield "reader.engine=library reads files through the page cache: leave it out, or set reader.odirect=false"
        if data.source == "folder":
            from datagen.own_folder import FLAT

            if data.format in FLAT:
                yield f"reader.engine=library reads {data.format} by its index, which your files lack; wanted 'matched'"
    if reader.verify and data.format == "synthetic":
        yield "reader.verify is true, but files of format synthetic are not read: wanted reader.verify=false"
    percent = reader.page_cache_percent
    if percent and reader.evict_page_cache == "never":
        yield f"reader.page_cache_percent is {percent:g}: wanted reader.evict_page_cache=start or epochs with it"
    if percent and (reader.odirect or not workload.storage.has_paths):
        yield f"reader.page_cache_percent is {percent:g}, but these reads bypass the page cache; wanted 0"
    if reader.evict_page_cache == "epochs" and data.format == "mmap_indexed_binary":
        yield "reader.evict_page_cache is 'epochs', but mmap_indexed_binary's pages stay mapped: wanted 'start'"
    yield from _name_problems(workload, "train", "compute")
    if unknown := list(_name_problems(workload, "reader", "data_loader")):
        yield from unknown
    elif traits := companion(LOADERS, workload.reader.data_loader, "Traits"):
        yield from traits().problems(workload)


def _name_problems(workload: Workload, section: str, key: str) -> Iterator[str]:
    package, name = MODULES[section, key], getattr(getattr(workload, section), key)
    if is_dotted(name):
        try:
            companion(package, name, "")  # only to import the user's own module
        except UserError as error:
            yield f"{section}.{key}: {error}"
    elif name not in (known := names(package)):
        yield (
            f"{section}.{key} is {name!r}: {nearest(name, known)}wanted one of {', '.join(known)}, or the dotted name "
            "of your own module"
        )
