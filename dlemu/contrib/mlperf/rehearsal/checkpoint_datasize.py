"""Computes the size of a model's checkpoints, the space for ten of them, and their ratio to the hosts' memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.rules.checkpoints import (
    CHECKPOINTS,
    EDITIONS_WITH_CHECKPOINTS,
    MODELS,
    RANKS_A_HOST,
    OfficialModel,
    official_model,
)
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError, checkpoint_plan


@dataclass(frozen=True, kw_only=True)
class CheckpointDatasize:
    """Sizes of a model's checkpoints for a number of hosts and ranks."""

    edition: str
    model: str
    """By mlpstorage's name."""
    hosts: int
    memory_gib_per_host: float
    size: checkpoint_plan.CheckpointSize
    """Size of one checkpoint."""
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
    if model is None or edition not in (None, *EDITIONS_WITH_CHECKPOINTS):
        known = ", ".join(each.workload for each in MODELS.values())
        seen = f"workload={workload.model.name}" + (f" of v{edition}" if edition else "")
        raise UserError(f"{seen} has no datasize: wanted a training workload, or one of {known} of v2.0 or v3.0")
    size = checkpoint_plan.checkpoint_size(workload.model.name, workload)
    written = CHECKPOINTS * size.total_gib / hosts
    name = edition or EDITIONS_WITH_CHECKPOINTS[-1]
    return CheckpointDatasize(
        edition=name,
        model=model.name,
        hosts=hosts,
        memory_gib_per_host=memory_gib_per_host,
        size=size,
        room_gib=CHECKPOINTS * size.total_gib,
        written_gib_per_host=written,
        memory_factor=written / memory_gib_per_host,
        findings=(*_other_settings(model, workload), *_findings(model, size, hosts, name)),
    )


def _other_settings(model: OfficialModel, workload: Workload) -> list[Finding]:
    """Return a finding if the model differs from the official one of that name in shape or parallelism."""
    official, own = model.settings().model, workload.model
    subset = replace(own.parallelism, data=official.parallelism.data)
    if replace(own, name=official.name, parallelism=subset) == official:
        return []
    seen = f"{own.name} differs from {model.name} in its dimensions or in how it is split over the ranks"
    return [by_rule("checkpoint.settings", seen, model.name, f"workload={model.workload}")]


def _findings(model: OfficialModel, size: checkpoint_plan.CheckpointSize, hosts: int, edition: str) -> list[Finding]:
    found = []
    wanted, fix = f"{model.ranks} processes in CLOSED", f"ranks={model.ranks}"
    if size.ranks != model.ranks and not (edition == "2.0" and size.ranks == 8 and size.job_ranks == model.ranks):
        found.append(by_rule("checkpoint.processes", f"{size.ranks} processes", wanted, fix))
    if size.ranks / hosts < RANKS_A_HOST:
        seen, fix = f"{size.ranks} processes on {hosts} hosts", "use fewer hosts"
        found.append(by_rule("checkpoint.hosts", seen, f"more than {RANKS_A_HOST} on each", fix))
    return found
