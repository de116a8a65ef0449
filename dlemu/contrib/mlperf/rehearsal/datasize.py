"""Computes how large MLPerf Storage's rules require a dataset to be, and how large a model's checkpoints are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psutil

from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.run_settings import Printed, setup_of
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rules.checkpoints import CHECKPOINTS, MODELS, RANKS_A_HOST, OfficialModel, official_model
from dlemu.contrib.mlperf.rules.editions import EDITIONS, Edition, Official, newest_edition
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.contrib.mlperf.rules.training import GIB, DatasetBound, smallest_dataset
from dlemu.extend import UserError, checkpoint_plan, dlio_workload, environment

FILES_A_FOLDER = 10_000  # largest number of files that mlpstorage v2.0 advises for one folder of any file system


@dataclass(frozen=True, kw_only=True)
class Datasize:
    edition: str
    workload: str
    accelerator: str
    accelerators: int
    """Number on all hosts together."""
    hosts: int
    memory_gib_per_host: float
    bound: DatasetBound
    files: int
    """Advised number of files: still enough if the hosts' memory turns out to be 1 % larger."""
    subfolders: int
    steps_per_epoch: int
    nominal_bytes: int
    """Size as the rules count it: samples x record length."""
    findings: tuple[Finding, ...]
    """Other settings that break a rule."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the dataset's settings as overrides, which dlemu and DLIO name alike."""
        words = [f"dataset.num_files_train={self.files}"]
        return tuple([*words, f"dataset.num_subfolders_train={self.subfolders}"] if self.subfolders else words)


def datasize(
    workload: Workload,
    *,
    edition: str | None,
    hosts: int,
    memory_gib_per_host: float,
    files_requested: int | None = None,
) -> Datasize:
    """Return the dataset's required size for `ranks` accelerators, by an edition or the newest that has the workload.

    If `files_requested` is too small, the result has a finding. Raises UserError if no edition, or not the named one,
    has this workload and accelerator, and for fewer ranks than hosts.
    """
    if workload.ranks < hosts:
        seen = f"ranks={workload.ranks} on {hosts} hosts: ranks are the accelerators of all hosts together"
        raise UserError(f"{seen}, set ranks to {hosts} or more")
    rules, official = _edition(workload, edition)
    official = replace(official, samples_per_file=workload.dataset.num_samples_per_file)
    memory_bytes = hosts * memory_gib_per_host * GIB
    bound = smallest_dataset(official, official.batch_size, workload.ranks, memory_bytes)
    files, samples = bound.comfortable_files, bound.comfortable_files * official.samples_per_file
    folders = workload.dataset.num_subfolders_train
    config = dlio_workload(workload)
    setup = replace(setup_of(config, []), accelerator=workload.accelerator, num_files=files_requested, config=config)
    run = Printed(accelerators=workload.ranks, hosts=hosts, memory_gib=hosts * memory_gib_per_host)
    findings = check_run(rules, setup, run, "closed", by_dlemu=True)
    return Datasize(
        edition=rules.name,
        workload=workload.model.name,
        accelerator=workload.accelerator,
        accelerators=workload.ranks,
        hosts=hosts,
        memory_gib_per_host=memory_gib_per_host,
        bound=bound,
        files=files,
        subfolders=folders or (math.ceil(files / FILES_A_FOLDER) if files > FILES_A_FOLDER else 0),
        steps_per_epoch=samples // (official.batch_size * workload.ranks),
        nominal_bytes=math.ceil(samples * official.record_bytes),
        findings=tuple(finding for finding in findings if finding.rule != "unapplied"),
    )


def _edition(workload: Workload, name: str | None) -> tuple[Edition, Official]:
    model, accelerator = workload.model.name, workload.accelerator
    edition = newest_edition(model, accelerator) if name is None else EDITIONS[name]
    official = edition.official(model, accelerator) if edition else None
    if edition and official:
        return edition, official
    choices = [f"v{each.name}: {', '.join(map(' on '.join, each.officials))}" for each in EDITIONS.values()]
    rules = f"v{name}" if name else "MLPerf Storage"
    seen = f"workload={model} accelerator={accelerator or '(none)'} is not in the rules of {rules}"
    raise UserError(f"{seen}: wanted one of {'; '.join(choices)}")


def host_memory_gib() -> float:
    """Return this host's memory in GiB, or its control group's limit if that is lower."""
    host = environment.describe_host()
    return min(host.memory_bytes, host.memory_limit_bytes or host.memory_bytes) / GIB


def free_bytes(folder: str) -> tuple[int, str]:
    """Return the free space of a folder, or of its nearest parent that exists, and the path of the folder measured."""
    there = environment.existing_folder(folder)
    return psutil.disk_usage(there).free, there


@dataclass(frozen=True, kw_only=True)
class CheckpointDatasize:
    """Sizes of a model's checkpoints for a number of hosts and ranks."""

    edition: str
    model: str
    """By mlpstorage's name."""
    hosts: int
    memory_gib_per_host: float
    size: checkpoint_plan.CheckpointSizes
    room_gib: float
    """Space for the ten checkpoints that a result writes and keeps."""
    written_gib_per_host: float
    memory_factor: float
    """GiB that a host writes divided by its memory; above 3, its page cache can't serve the reads."""
    findings: tuple[Finding, ...]


def checkpoint_datasize(
    workload: Workload, *, edition: str | None, hosts: int, memory_gib_per_host: float
) -> CheckpointDatasize:
    """Return the sizes of a model's checkpoints, written by the workload's `ranks` processes on `hosts` hosts.

    Raises:
        UserError: the edition has no such model, or the model can't be split over this many ranks.
    """
    model = official_model(workload.model.name)
    if model is None or edition not in (None, *EDITIONS):
        known = ", ".join(each.workload for each in MODELS.values())
        seen = f"workload={workload.model.name}" + (f" of v{edition}" if edition else "")
        raise UserError(f"{seen} has no datasize: wanted a training workload, or one of {known} of v2.0 or v3.0")
    size = checkpoint_plan.checkpoint_sizes(workload)
    room = CHECKPOINTS * size.tensor_gib
    name = edition or max(EDITIONS)
    return CheckpointDatasize(
        edition=name,
        model=model.name,
        hosts=hosts,
        memory_gib_per_host=memory_gib_per_host,
        size=size,
        room_gib=room,
        written_gib_per_host=room / hosts,
        memory_factor=room / hosts / memory_gib_per_host,
        findings=tuple(_findings(model, workload, size, hosts, name)),
    )


def _findings(
    model: OfficialModel, workload: Workload, size: checkpoint_plan.CheckpointSizes, hosts: int, edition: str
) -> Iterator[Finding]:
    official, own = model.settings().model, workload.model
    subset = replace(own.parallelism, data=official.parallelism.data)
    if replace(own, name=official.name, parallelism=subset) != official:
        seen = f"{own.name} differs from {model.name} in its dimensions or in how it is split over the ranks"
        yield by_rule("checkpoint.settings", seen, model.name, f"workload={model.workload}")
    if size.ranks != model.ranks and not (edition == "2.0" and size.ranks == 8 and size.ranks_of_job == model.ranks):
        seen, wanted = f"{size.ranks} processes", f"{model.ranks} processes in CLOSED"
        yield by_rule("checkpoint.processes", seen, wanted, f"ranks={model.ranks}")
    if size.ranks / hosts < RANKS_A_HOST:
        yield by_rule("checkpoint.hosts", f"{size.ranks} processes on {hosts} hosts", fix="use fewer hosts")
