"""What values are possible (`check`), and what this version can train (`check_runnable`) and make (`check_data`)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator

from datagen.errors import UserError
from datagen.registry import companion, names
from datagen.spec import together
from datagen.storage.storage_base import FOLDER_TYPES, open_storage
from dlemu.config.loader_settings import LOADERS, loader_problems
from dlemu.config.schema import Workload
from dlemu.config.workload_files import nearest

SMALLEST = sys.float_info.min
Limit = tuple[float, float, str]
"""Least and greatest possible value, and both in words."""


MOST_COUNT, MOST_SECONDS, MOST_BYTES = 10**9, 10**6, 1 << 60
"""Far beyond any run, and far below where arithmetic of nanoseconds and bytes in 64 bits ends."""
MOST_EPOCHS, MOST_PROCESSES = 10**5, 10**6


def _at_least(least: float, most: float = MOST_COUNT) -> Limit:
    return least, most, f"{least} or more, and at most {most}"


LIMITS: dict[str, Limit] = {
    "ranks": _at_least(1, MOST_PROCESSES),
    "timeout_seconds": (SMALLEST, math.inf, "more than 0"),
    "model.model_size_bytes": _at_least(0, MOST_BYTES),
    "model.num_layers": (-1, 10**4, "1 to 10000, or -1 where they are not known"),
    "model.parallelism.tensor": _at_least(1, MOST_PROCESSES),
    "model.parallelism.pipeline": _at_least(1, MOST_PROCESSES),
    "model.parallelism.expert": _at_least(1, MOST_PROCESSES),
    "model.parallelism.zero_stage": (0, 3, "0 to 3"),
    "model.transformer.vocab_size": _at_least(1),
    "model.transformer.hidden_size": _at_least(1),
    "model.transformer.ffn_hidden_size": _at_least(1),
    "model.transformer.num_attention_heads": _at_least(1),
    "model.transformer.num_kv_heads": _at_least(1),
    "model.transformer.head_dim": _at_least(0),
    "model.transformer.num_experts": _at_least(0, 10**5),
    "model.transformer.moe_ffn_hidden_size": _at_least(0),
    "model.transformer.num_shared_experts": _at_least(0),
    "model.transformer.num_dense_layers": _at_least(0),
    "reader.batch_size": _at_least(1),
    "reader.batch_size_eval": _at_least(1),
    "reader.read_threads": _at_least(0, MOST_PROCESSES),
    "reader.prefetch_size": _at_least(0, MOST_PROCESSES),
    "reader.computation_threads": _at_least(1, MOST_PROCESSES),
    "reader.transfer_size": _at_least(0, MOST_BYTES),
    "reader.shuffle_size": _at_least(1),
    "reader.range_bytes": _at_least(0),
    "reader.io_depth": _at_least(1),
    "reader.nice": (0, 19, "0 to 19"),
    "train.epochs": _at_least(1, MOST_EPOCHS),
    "train.seed": _at_least(0, 2**63 - 1),
    "evaluation.eval_after_epoch": _at_least(1),
    "evaluation.epochs_between_evals": _at_least(1),
    "checkpoint.checkpoint_after_epoch": _at_least(1),
    "checkpoint.epochs_between_checkpoints": _at_least(1),
    "checkpoint.job_ranks": _at_least(0, MOST_PROCESSES),
    "checkpoint.first_rank": _at_least(0, MOST_PROCESSES),
    "checkpoint.num_checkpoints_write": (-1, 10**6, "1 to 1000000, or 0 for none"),
    "checkpoint.num_checkpoints_read": (-1, 10**6, "1 to 1000000, or 0 for none"),
    "checkpoint.time_between_checkpoints": (-1, MOST_SECONDS, "0 or more, and at most 1000000"),
    "checkpoint.writers": (1, 64, "1 to 64"),
    "checkpoint.readers": (1, 64, "1 to 64"),
    "checkpoint.transfer_size": (4096, 32 << 20, "4096 to 33554432 (32 MiB)"),
    "checkpoint.keep_last": _at_least(0),
    "checkpoint.interval_seconds": (SMALLEST, math.inf, "more than 0"),
    "checkpoint.mtbf_hours": _at_least(0),
    "checkpoint.snapshot_gb_per_second": (SMALLEST, math.inf, "more than 0"),
    "metric.au": (SMALLEST, 1, "a share above 0 and at most 1, such as 0.9"),
    "metric.exclude_start_steps": _at_least(0),
    "metric.exclude_end_steps": _at_least(0),
    "metric.ceiling_seconds": _at_least(0, MOST_SECONDS),
    "metric.scaling_seconds": _at_least(0, MOST_SECONDS),
    "metric.get_price": _at_least(0),
    "metric.put_price": _at_least(0),
    "telemetry.interval_seconds": _at_least(0.01, MOST_SECONDS),
}
MOST_PLANNED = 10**12
MINUS_ONE_OR_POSITIVE = {
    "train.total_training_steps": "-1 for every step",
    "checkpoint.steps_between_checkpoints": "-1 for none within an epoch",
    "model.parallelism.data": "-1 for as many as there are ranks for",
}


def check(workload: Workload) -> None:
    """Raise one UserError that lists every value that is impossible in itself."""
    _refuse(
        [
            *_range_problems(workload),
            *_duration_problems(workload),
            *_table_problems(workload),
            *workload.dataset.check(),
        ]
    )


def check_model_name(name: str) -> None:
    """Raise UserError for a name that can't be that of a folder of results: results/NAME."""
    if name in ("", ".", "..") or os.sep in name or "\0" in name:
        raise UserError(f"model.name is {name!r}: wanted a name, without /, which the folder of its results can have")


def check_runnable(workload: Workload) -> None:
    """Raise one UserError that lists all that stands in the way of training with the workload."""
    _refuse(
        [
            *_scope_problems(workload),
            *_data_problems(workload),
            *_checkpoint_problems(workload),
            *_name_problems("train.compute", workload.train.compute, "dlemu.accelerators"),
            *_loader_problems(workload),
            *_evict_problems(workload),
            *_verify_problems(workload),
            *_library_problems(workload),
            *workload.unsupported,
        ]
    )


def check_checkpoints(workload: Workload) -> None:
    """Raise one UserError that lists all that stands in the way of writing and reading checkpoints alone."""
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
            f"workload {workload.model.name!r} does not say how large a model's checkpoint is: wanted a workload of"
            " one, as in `dlemu checkpoint workload=llama3_8b scale=laptop` (`dlemu workloads` lists them), or"
            " its bytes in model.model_size_bytes"
        )
    if max(settings.num_checkpoints_write, settings.num_checkpoints_read) < 1:
        problems.append(
            "checkpoint.num_checkpoints_write and num_checkpoints_read are both 0: wanted 1 or more of one of them"
        )
    _refuse(problems)


def _moving_problems(workload: Workload) -> Iterator[str]:
    settings = workload.checkpoint
    if settings.transfer_size % 4096:
        yield f"checkpoint.transfer_size is {settings.transfer_size}: wanted a multiple of 4096"
    if settings.writers * settings.transfer_size > 128 << 20:
        yield (
            f"checkpoint.writers is {settings.writers} with a checkpoint.transfer_size of {settings.transfer_size}: "
            "wanted at most 128 MiB of both multiplied, which is what a rank's buffers may take"
        )
    if settings.readers * settings.transfer_size > 128 << 20:
        yield (
            f"checkpoint.readers is {settings.readers} with a checkpoint.transfer_size of {settings.transfer_size}: "
            "wanted at most 128 MiB of both multiplied, which is what a rank's buffers may take"
        )
    if settings.odirect and settings.read_as == "torch_load":
        yield (
            "checkpoint.odirect is true with read_as=torch_load, which reads tensors where they begin: wanted "
            "read_as=fast or mlperf_v3, or odirect=false"
        )
    if settings.recovery_rank_shift and settings.reshard:
        yield "checkpoint.recovery_rank_shift and checkpoint.reshard are both true: wanted one of them"


def check_data(workload: Workload) -> None:
    """Raise one UserError that lists all that stands in the way of making the workload's dataset."""
    _refuse(_data_problems(workload))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError(together(problems))


def _data_problems(workload: Workload) -> list[str]:
    return [
        *_storage_problems(workload),
        *_folder_problems(workload, "dataset.data_folder", workload.dataset.data_folder),
        *_name_problems("dataset.format", workload.dataset.format, "datagen.formats"),
    ]


def _range_problems(workload: Workload) -> Iterator[str]:
    for key, (least, greatest, words) in LIMITS.items():
        if not least <= (number := _value(workload, key)) <= greatest:
            yield f"{key} is {number}: wanted {words}"
    for key, meaning in MINUS_ONE_OR_POSITIVE.items():
        if (number := _value(workload, key)) < 1 and number != -1:
            yield f"{key} is {number}: wanted 1 or more, or {meaning}"
        elif number > MOST_PLANNED:
            yield f"{key} is {number}: wanted at most {MOST_PLANNED}, or {meaning}"


def _value(workload: Workload, key: str) -> float:
    value: object = workload
    for name in key.split("."):
        value = getattr(value, name)
    assert isinstance(value, (int, float))
    return value


def _duration_problems(workload: Workload) -> Iterator[str]:
    yield from workload.reader.preprocess_time.problems("reader.preprocess_time")
    yield from workload.train.computation_time.problems("train.computation_time")
    yield from workload.evaluation.eval_time.problems("evaluation.eval_time")
    for name, accelerator in workload.accelerators.items():
        yield from accelerator.computation_time.problems(f"accelerators.{name}.computation_time")
        if not 1 <= accelerator.batch_size <= MOST_COUNT:
            wanted = f"wanted 1 or more, and at most {MOST_COUNT}"
            yield f"accelerators.{name}.batch_size is {accelerator.batch_size}: {wanted}"


def _table_problems(workload: Workload) -> Iterator[str]:
    choices = (
        ("accelerator", workload.accelerator, list(workload.accelerators)),
        ("scale", workload.scale, list(workload.scales)),
    )
    for key, name, known in choices:
        if name and name not in known:
            yield f"{key} is {name!r}: wanted one of {', '.join(known) or 'none, for the workload has no such table'}"


def _scope_problems(workload: Workload) -> Iterator[str]:
    if not workload.workflow.train:
        asked = [name for name in ("generate_data", "checkpoint") if getattr(workload.workflow, name)]
        commands = {"generate_data": "dlemu datagen", "checkpoint": "dlemu checkpoint"}
        advice = " or ".join(f"run {commands[name]}" for name in asked)
        yield (
            "workflow.train is false: nothing would be trained, the workload asks for "
            f"{' and '.join(asked) or 'nothing'}; {f'{advice}, or ' if advice else ''}set workflow.train=true"
        )


def _storage_problems(workload: Workload) -> Iterator[str]:
    storage, reader = workload.storage, workload.reader
    if storage.storage_type == "aistore":
        yield (
            "storage.storage_type is 'aistore': wanted s3, with the address of AIStore's S3 interface "
            "(http://HOST:PORT/s3 is not taken: give a proxy that serves it at the root), or your own module"
        )
        return
    try:
        kind = workload.storage_spec
        if storage.storage_type not in FOLDER_TYPES:
            opened = open_storage(kind)
            if opened.is_remote and reader.transfer_size:
                yield (
                    f"reader.transfer_size is {reader.transfer_size}: an object is read by requests; wanted "
                    "reader.range_bytes, the bytes of one"
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
    """Say that the library is missing by which `reader.engine=library` reads an object store."""
    if workload.reader.engine != "library" or workload.storage.storage_type in FOLDER_TYPES:
        return
    try:
        open_storage(workload.storage_spec).check_library()
    except UserError as error:
        if not list(_storage_problems(workload)):  # or it is said already
            yield str(error)


def _folder_problems(workload: Workload, key: str, folder: str) -> Iterator[str]:
    if "://" in folder and workload.storage.storage_type in FOLDER_TYPES:
        kind = "s3" if folder.startswith("s3://") else "fsspec"
        yield (
            f"{key} is {folder!r}, a URL, and storage.storage_type says folders: wanted storage.storage_type={kind}, "
            "or a folder of a mounted file system"
        )


def _checkpoint_problems(workload: Workload) -> Iterator[str]:
    if workload.workflow.checkpoint:
        yield from _folder_problems(workload, "checkpoint.checkpoint_folder", workload.checkpoint.checkpoint_folder)


def _loader_problems(workload: Workload) -> list[str]:
    unknown = list(_name_problems("reader.data_loader", workload.reader.data_loader, LOADERS))
    return unknown or loader_problems(workload)


def _verify_problems(workload: Workload) -> Iterator[str]:
    if workload.reader.verify and workload.dataset.format == "synthetic":
        yield (
            "reader.verify is true, but files of format synthetic are not read; wanted reader.verify=false, or another"
            " dataset.format"
        )


def _evict_problems(workload: Workload) -> Iterator[str]:
    if workload.reader.evict_page_cache == "epochs" and workload.dataset.format == "mmap_indexed_binary":
        yield (
            "reader.evict_page_cache is 'epochs', but mmap_indexed_binary's readers keep their files mapped and the"
            " kernel keeps mapped pages; wanted 'start', or dataset.format=indexed_binary"
        )


def _name_problems(key: str, name: str, package: str) -> Iterator[str]:
    known = names(package)
    if "." in name:
        try:
            companion(package, name, "")
        except UserError as error:
            yield f"{key}: {error}"
    elif name not in known:
        listed = ", ".join(known)
        yield f"{key} is {name!r}: {nearest(name, known)}wanted one of {listed}, or the dotted name of your own module"
