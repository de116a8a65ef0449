"""Checks before a training run starts or makes its dataset: host limits, and whether the run can have a verdict.

A verdict needs steps that count: of a block (`plan.Block`), those that `metric.exclude_*_steps` do not drop.
"""

from __future__ import annotations

import resource
import shlex
from dataclasses import replace
from math import ceil

import psutil

from datagen import manifest
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.layout import stored_sample_bytes
from datagen.records import MAX_OPEN_FILES
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import open_storage
from dlemu.config.duration import mean_seconds
from dlemu.config.overrides import override
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import TrainingJob, make_job, make_schedule, planned_dataset
from dlemu.machine.cgroup_limits import host_memory
from dlemu.machine.environment import existing_folder
from dlemu.metrics.cache import WANTED_RATIO, eviction
from dlemu.report.units import size
from dlemu.results.wording import count
from dlemu.runner.job import CONFIRM_ABOVE_BYTES, TRIAL_SCALE

_SAVING_BYTES = 256 << 20  # address space that writing the results needs; with less, libraries abort the process


def check_before_making(workload: Workload, ranks: int, *, wants_verdict: bool = False) -> None:
    """Raise UserError if the run would fail on the finished dataset: too few samples, no framework, bad settings."""
    check_model(workload, ranks)
    planned = planned_dataset(workload.dataset)
    if wants_verdict:
        check_verdict_possible(workload, ranks, planned.train.num_files, existing_files=0)
    make_job(workload, ranks, planned).loader_class()


def check_model(workload: Workload, ranks: int) -> None:
    """Raise UserError if checkpoints are saved and the model can't be split among the ranks."""
    if workload.workflow.checkpoint:
        from dlemu.checkpoints.checkpoint_plan import plan_checkpoint  # most runs save no checkpoints

        plan_checkpoint(workload.model, workload.checkpoint, ranks)


def check_host(job: TrainingJob, local_ranks: int) -> None:
    """Raise SpaceError if this host's limits are too low for its ranks, UserError if a setting can't work on it."""
    eviction, folder = job.workload.reader.evict_page_cache, job.workload.dataset.data_folder
    memory_kind = open_storage(job.workload.storage_spec.buffered).memory_kind(folder) if eviction != "never" else ""
    if memory_kind:
        raise UserError(
            f"reader.evict_page_cache is {eviction!r}, but {folder} is on {memory_kind}, whose files are always in "
            "memory: put the dataset on a drive, or set reader.evict_page_cache=never"
        )
    job.accelerator_class.check_host(job.accelerator_spec(0))
    _check_files(job)
    _check_memory(job, local_ranks)


def _check_files(job: TrainingJob) -> None:
    """Raise the soft limit on open files to what a rank may need; SpaceError if the hard limit is too low."""
    # 64 for logs, sockets to other ranks and libraries' files; 6 for a worker's queues, pipes, sentinel (PyTorch 2.13)
    needed = 64 + 6 * job.workload.reader.read_threads
    wanted = needed + 3 * MAX_OPEN_FILES * job.workload.reader.read_threads  # 3 for a file with two indexes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    elif hard < needed:
        raise SpaceError(
            f"reader.read_threads={job.workload.reader.read_threads} takes {needed} file descriptors per rank and the "
            f"limit is {hard}: lower reader.read_threads, or raise the limit (`ulimit -n {needed}`)"
        )


def memory_needed(job: TrainingJob, local_ranks: int) -> int:
    """Return the bytes of memory that a host's ranks will use: batch buffers, read buffers, processes."""
    return local_ranks * job.traits.rank_bytes(job.loader_spec(0))


def _check_memory(job: TrainingJob, local_ranks: int) -> None:
    """Raise SpaceError if memory or address space (RLIMIT_AS) is short: libraries abort when that limit is reached."""
    needed, memory = memory_needed(job, local_ranks), host_memory()
    if needed > memory.available_bytes:
        available = f"{memory.available_bytes / 2**20:,.0f} MiB are available"
        if memory.limit_bytes is not None:
            available += f", of the {memory.limit_bytes / 2**20:,.0f} MiB of this container or job (control group)"
        notes = job.workload.notes if job.workload.dataset.source == "folder" else ()
        raise SpaceError(
            f"the buffers of {local_ranks} ranks x {job.workload.reader.read_threads} workers need "
            f"{needed / 2**20:,.0f} MiB of memory on this host, and {available}: lower ranks, reader.read_threads, "
            "reader.prefetch_size or reader.batch_size" + "".join(f"; {note}" for note in notes)
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    address_space = psutil.Process().memory_info().vms + _SAVING_BYTES + memory_needed(job, 1)
    if limit != resource.RLIM_INFINITY and address_space > limit:
        raise SpaceError(
            f"a rank needs {address_space / 2**20:.0f} MiB of address space, and the limit is {limit / 2**20:.0f} MiB: "
            f"raise it (`ulimit -v {-(-address_space // 1024)}`, or unlimited)"
        )


ENOUGH_STEPS = 20  # recommended steps per epoch: they outlast read-ahead, and give the AU a confidence interval


def dataset_for_verdict(workload: Workload, ranks: int) -> DatasetSpec:
    """Return the workload's dataset, with more files if its epochs would have fewer than ENOUGH_STEPS steps."""
    data, steps = workload.dataset, ENOUGH_STEPS - 1 + _excluded(workload)
    files = ceil(steps * workload.reader.batch_size * ranks / data.num_samples_per_file)
    return replace(data, num_files_train=max(data.num_files_train, files))


def nominal_bytes(data: DatasetSpec) -> int:
    """Return the nominal bytes of a dataset's samples, for training and evaluation."""
    return (data.num_files_train + data.num_files_eval) * data.num_samples_per_file * stored_sample_bytes(data)


def steps_per_epoch(workload: Workload, ranks: int, files: int) -> int:
    return files * workload.dataset.num_samples_per_file // (workload.reader.batch_size * ranks)


def gives_verdict(workload: Workload, steps: int) -> bool:
    """Return whether epochs of `steps` steps can give a verdict; True if the run needs none."""
    metric, train = workload.metric, workload.train
    if mean_seconds(train.computation_time) <= 0 or train.total_training_steps > 0:
        return True
    if steps and metric.verdict == "rules":
        return True
    return any(block.steps > _excluded(workload) for epoch in make_schedule(workload, steps) for block in epoch.blocks)


def _excluded(workload: Workload) -> int:
    """Return how many steps of each block do not count."""
    return workload.metric.exclude_start_steps + workload.metric.exclude_end_steps


def _why_blocks_too_short(workload: Workload, steps: int) -> str:
    """For epochs of `steps` steps that give no verdict, return how checkpoints are the cause; '' if they are not."""
    excluded, between = _excluded(workload), workload.checkpoint.steps_between_checkpoints
    if steps <= excluded:  # the epochs themselves are too short
        return ""
    return (
        f"checkpoint.steps_between_checkpoints={between} leaves no step to count for a verdict, as "
        f"metric.exclude_start_steps and exclude_end_steps drop {excluded} between checkpoints, too: set it to "
        f"{excluded + 1} or more"
    )


def why_too_small(workload: Workload, ranks: int) -> str:
    """Return why the workload's dataset is too small for a verdict, as a message; '' if it is large enough."""
    files = workload.dataset.num_files_train
    steps = steps_per_epoch(workload, ranks, files)
    if gives_verdict(workload, steps):
        return ""
    needed = dataset_for_verdict(workload, ranks)
    return _why_blocks_too_short(workload, steps) or (
        f"{files:,} files are too few for a verdict with {count(ranks, 'rank')}, and a dataset can't be extended: "
        f"wanted dataset.num_files_train={needed.num_files_train} or more ({size(nominal_bytes(needed))})"
    )


def check_verdict_possible(workload: Workload, ranks: int, files: int, *, existing_files: int) -> None:
    """Raise DatasetError or UserError if `files` files can't give a verdict; the folder has `existing_files`."""
    steps = steps_per_epoch(workload, ranks, files)
    if gives_verdict(workload, steps):
        return
    notes = workload.notes if workload.dataset.source == "folder" else ()
    note_sentences = "".join(f" {note[0].upper()}{note[1:]}." for note in notes)
    if not steps:
        problem = f"{count(files, 'file')} can't fill one step of {count(ranks, 'rank')}.{note_sentences}"
        raise no_verdict_error(problem, workload, ranks, existing_files)
    if reason := _why_blocks_too_short(workload, steps):
        raise UserError(reason)
    alternative = f"To run anyway, without a verdict: train.total_training_steps={steps * workload.train.epochs}"
    if workload.metric.exclude_start_steps:
        alternative += "; to count the first step of each epoch as well: metric.exclude_start_steps=0"
    problem = (
        f"{count(steps, 'step')} per epoch can't give a verdict: metric.exclude_start_steps and exclude_end_steps "
        f"leave none to count.{note_sentences}"
    )
    raise no_verdict_error(problem, workload, ranks, existing_files, alternative)


def workload_for_making(workload: Workload, ranks: int, *, size_is_given: bool) -> tuple[Workload, int]:
    """Return a workload that makes the missing files of a dataset large enough for a verdict, and its nominal bytes.

    The bytes are 0 if the dataset is complete. The number of files is kept if the user gave it (`size_is_given`), or if
    a part of the dataset exists. Unless the user gave it, raises UserError if no verdict is possible.
    """
    from datagen.generate import refuse_foreign_files, refuse_own_files  # most runs make nothing

    storage = open_storage(workload.storage_spec.buffered)
    refuse_own_files(workload.dataset)
    existing = manifest.read(workload.dataset.data_folder, storage)
    if existing is None:
        refuse_foreign_files(workload.dataset, storage)
    changed = replace(workload, workflow=replace(workload.workflow, generate_data=True))
    if not size_is_given and workload.workflow.train and mean_seconds(workload.train.computation_time) > 0:
        data = existing.spec if existing else dataset_for_verdict(workload, ranks)
        changed = replace(changed, dataset=replace(workload.dataset, num_files_train=data.num_files_train))
        if problem := why_too_small(changed, ranks):
            too_few = f"{workload.dataset.data_folder}: {problem}, in another dataset.data_folder"
            steps = steps_per_epoch(changed, ranks, data.num_files_train)
            raise UserError(_why_blocks_too_short(changed, steps) or too_few)
    return changed, 0 if existing and existing.complete else nominal_bytes(changed.dataset)


def no_verdict_error(
    problem: str, workload: Workload, ranks: int, existing_files: int, alternative: str = ""
) -> DatasetError:
    """Return the error for a run that can't give a verdict: the problem, advice, and a line `alternative` to it."""
    return DatasetError("\n".join(filter(None, [f"{problem} {_advice(workload, ranks, existing_files)}", alternative])))


def _advice(workload: Workload, ranks: int, existing_files: int) -> str:
    """Return what to change for a verdict: `Wanted 42 files for 2 ranks x batch 4; add to the command --make ...`."""
    data, step_text = workload.dataset, f"{count(ranks, 'rank')} x batch {workload.reader.batch_size}"
    if data.source == "folder":  # dlemu makes nothing among a user's own files
        few_steps = f"{step_text} get {count(steps_per_epoch(workload, ranks, existing_files), 'step')} per epoch"
        larger = "set dataset.data_folder to a folder with more files, or cut files that hold many samples"
        return f"{few_steps}: lower ranks or reader.batch_size, {larger} (dataset.format=indexed_binary)"
    suffices = gives_verdict(workload, steps_per_epoch(workload, ranks, data.num_files_train))
    needed = data if suffices else dataset_for_verdict(workload, ranks)
    files, size_bytes = needed.num_files_train, nominal_bytes(needed)
    if existing_files >= files:
        return f"The folder already has {existing_files:,} files: set dataset.num_files_train={existing_files}."
    options = ["--make"]
    if existing_files:
        options.append(_folder_beside(workload, str(files)))
    if not suffices:
        options.append(f"dataset.num_files_train={files}")
    options += _eviction(workload, size_bytes)
    wanted = f"Wanted {files:,} files ({size(size_bytes)}) for {step_text}"
    advice = f"{wanted}; add to the command\n    {shlex.join(options)}"
    if size_bytes > CONFIRM_ABOVE_BYTES and TRIAL_SCALE in workload.scales and not workload.scale:
        evicts = _eviction(workload, 0)  # the trial takes a few GB
        options = [f"scale={TRIAL_SCALE}", _folder_beside(workload, TRIAL_SCALE), "--make", *evicts]
        advice += f"\nor, to try it with small samples,\n    {shlex.join(options)}"
    return f"{advice}\n(in Python, make=True for --make)"


def _folder_beside(workload: Workload, name: str) -> str:
    """Return an override of `dataset.data_folder`: a folder next to the present one, for a dataset of another size."""
    return override(["dataset", "data_folder"], f"{workload.dataset.data_folder.rstrip('/')}-{name}")


def _eviction(workload: Workload, size_bytes: int) -> list[str]:
    """Return the setting that evicts a dataset of `size_bytes`, if the page cache could hold that; else none."""
    storage, reader = open_storage(workload.storage_spec.buffered), workload.reader
    if reader.odirect or reader.evict_page_cache != "never" or workload.metric.cached or storage.is_remote:
        return []
    in_memory = storage.memory_kind(existing_folder(workload.dataset.data_folder))
    fits = not in_memory and size_bytes < WANTED_RATIO * psutil.virtual_memory().total
    return [eviction(workload.dataset.format)] if fits else []
