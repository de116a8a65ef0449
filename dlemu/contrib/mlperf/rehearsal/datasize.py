"""Computes the size of a dataset that MLPerf Storage's rules require, and the size of a model's checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.run_settings import Printed, setup_of
from dlemu.contrib.mlperf.check.training_rules import check_run
from dlemu.contrib.mlperf.rules.checkpoints import CHECKPOINTS, MODELS, OfficialModel, few_per_host, official_model
from dlemu.contrib.mlperf.rules.editions import EDITIONS, Edition, Official, newest_edition
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.contrib.mlperf.rules.training import GIB, DatasetBound, smallest_dataset
from dlemu.extend import UserError, checkpoint_plan, dlio_workload, environment

FILES_PER_FOLDER = 10_000  # largest number of files that mlpstorage v2.0 advises for a folder of any file system


@dataclass(frozen=True, kw_only=True)
class Datasize:
    """The required and the advised size of a dataset."""

    edition: str
    workload: str
    accelerator: str
    accelerators: int
    """Number of accelerators on all hosts together."""
    hosts: int
    memory_gib_per_host: float
    bound: DatasetBound
    files: int
    """Advised number of files: still enough if the hosts' memory turns out to be 1 % larger."""
    subfolders: int
    steps_per_epoch: int
    nominal_bytes: int
    """Size by the rules: samples x record length."""
    findings: tuple[Finding, ...]
    """Settings that break a rule."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The advised settings of the dataset as overrides, for dlemu and for DLIO."""
        overrides = [f"dataset.num_files_train={self.files}"]
        if self.subfolders:
            overrides.append(f"dataset.num_subfolders_train={self.subfolders}")
        return tuple(overrides)


def datasize(
    workload: Workload,
    *,
    edition: str | None,
    hosts: int,
    memory_gib_per_host: float,
    files_requested: int | None = None,
) -> Datasize:
    """Return the dataset's required size for the workload's `ranks` accelerators.

    The rules are those of `edition`, by default of the newest edition that has this workload and accelerator. The
    result has a finding if `files_requested` is too small. Raises UserError if the edition, or every edition, lacks the
    workload and accelerator, and for fewer ranks than hosts.
    """
    if workload.ranks < hosts:
        seen = f"ranks={workload.ranks} on {hosts} hosts: ranks are the accelerators of all hosts together"
        raise UserError(f"{seen}, set ranks to {hosts} or more")
    rules, official = _edition(workload, edition)
    official = replace(official, samples_per_file=workload.dataset.num_samples_per_file)
    memory_gib = hosts * memory_gib_per_host
    bound = smallest_dataset(official, workload.ranks, memory_gib * GIB)
    files = bound.advised_files
    samples = files * official.samples_per_file
    advised_subfolders = math.ceil(files / FILES_PER_FOLDER) if files > FILES_PER_FOLDER else 0
    config = dlio_workload(workload)
    setup = replace(setup_of(config, []), accelerator=workload.accelerator, num_files=files_requested, config=config)
    run = Printed(accelerators=workload.ranks, hosts=hosts, memory_gib=memory_gib)
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
        subfolders=workload.dataset.num_subfolders_train or advised_subfolders,
        steps_per_epoch=samples // (official.batch_size * workload.ranks),
        nominal_bytes=math.ceil(samples * workload.dataset.record_length_bytes),
        findings=tuple(finding for finding in findings if finding.rule != "unapplied"),
    )


def _edition(workload: Workload, name: str | None) -> tuple[Edition, Official]:
    model, accelerator = workload.model.name, workload.accelerator
    edition = newest_edition(model, accelerator) if name is None else EDITIONS[name]
    official = edition.officials.get((model, accelerator)) if edition else None
    if edition and official:
        return edition, official
    editions = EDITIONS.values() if name is None else (EDITIONS[name],)
    choices = [f"v{each.name}: {', '.join(map(' on '.join, each.officials))}" for each in editions]
    rules = f"v{name}" if name else "MLPerf Storage"
    seen = f"workload={model} accelerator={accelerator or '(none)'} is not in the rules of {rules}"
    raise UserError(f"{seen}: wanted one of {'; '.join(choices)}")


def host_memory_gib() -> float:
    """Return this host's memory in GiB, or its control group's limit if that is lower."""
    host = environment.describe_host()
    return min(host.memory_bytes, host.memory_limit_bytes or host.memory_bytes) / GIB


@dataclass(frozen=True, kw_only=True)
class CheckpointDatasize:
    """Sizes of a model's checkpoints for a number of hosts and ranks."""

    edition: str
    model: str
    """Name by mlpstorage, such as `llama3-8b`."""
    hosts: int
    memory_gib_per_host: float
    size: checkpoint_plan.CheckpointSizes
    room_gib: float
    """Space for the ten checkpoints that a result writes and keeps."""
    written_gib_per_host: float
    memory_factor: float
    """GiB that a host writes, divided by its memory; above 3, its page cache can't serve the reads."""
    findings: tuple[Finding, ...]


def checkpoint_datasize(
    workload: Workload, *, edition: str | None, hosts: int, memory_gib_per_host: float
) -> CheckpointDatasize:
    """Return the sizes of a model's checkpoints; UserError for an unknown one, or if `ranks` can't split it."""
    model = official_model(workload.model.name)
    if model is None or edition not in (None, *EDITIONS):
        models = ", ".join(each.workload for each in MODELS.values())
        seen = f"workload={workload.model.name}" + (f" of v{edition}" if edition else "")
        raise UserError(f"{seen} has no datasize: wanted a training workload, or one of {models} of v2.0 or v3.0")
    size = checkpoint_plan.checkpoint_sizes(workload)
    total_gib = CHECKPOINTS * size.tensor_gib
    rules_edition = edition or max(EDITIONS)
    return CheckpointDatasize(
        edition=rules_edition,
        model=model.name,
        hosts=hosts,
        memory_gib_per_host=memory_gib_per_host,
        size=size,
        room_gib=total_gib,
        written_gib_per_host=total_gib / hosts,
        memory_factor=total_gib / hosts / memory_gib_per_host,
        findings=tuple(_checkpoint_findings(model, workload, size, hosts, rules_edition)),
    )


def _checkpoint_findings(
    model: OfficialModel, workload: Workload, size: checkpoint_plan.CheckpointSizes, hosts: int, edition: str
) -> Iterator[Finding]:
    """Report a model that is not official, apart from its name and number of replicas, and a wrong number of ranks."""
    official = model.settings().model
    requested = workload.model
    parallelism = replace(requested.parallelism, data=official.parallelism.data)
    if replace(requested, name=official.name, parallelism=parallelism) != official:
        seen = f"{requested.name} differs from {model.name} in its dimensions or in how it is split over the ranks"
        yield by_rule("checkpoint.settings", seen, model.name, f"workload={model.workload}")
    is_subset = edition == "2.0" and size.ranks == 8 and size.ranks_of_job == model.ranks
    if size.ranks != model.ranks and not is_subset:
        seen, wanted = f"{size.ranks} processes", f"{model.ranks} processes in CLOSED"
        yield by_rule("checkpoint.processes", seen, wanted, f"ranks={model.ranks}")
    yield from few_per_host(size.ranks, hosts)
