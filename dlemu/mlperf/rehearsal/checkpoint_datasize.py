"""How large a model's checkpoints are by MLPerf Storage's rules, how much room ten take, and how much memory holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from datagen.errors import UserError
from dlemu.checkpoints.checkpoint_size import CheckpointSize, checkpoint_size
from dlemu.config.schema import Workload
from dlemu.mlperf.rules.checkpoints import (
    CHECKPOINTS,
    EDITIONS_WITH_CHECKPOINTS,
    MEMORY_FACTOR,
    MODELS,
    RANKS_A_HOST,
    OfficialModel,
    WrongSize,
    official_model,
    wrong_size,
)
from dlemu.results.finding import Finding


@dataclass(frozen=True, kw_only=True)
class CheckpointDatasize:
    """The answer."""

    edition: str
    model: str
    """As mlpstorage calls it."""
    hosts: int
    memory_gib_per_host: float
    size: CheckpointSize
    """One checkpoint."""
    room_gib: float
    """All that a result writes and keeps."""
    written_gib_per_host: float
    memory_factor: float
    """What a host writes, of its memory."""
    findings: tuple[Finding, ...]
    wrong: WrongSize | None
    """What an official source wrongly says of it."""

    @property
    def tool_commands(self) -> tuple[str, ...]:
        """Calls of the edition's own tool, with capitals for the user to fill in."""
        memory = math.ceil(self.memory_gib_per_host)
        what = f"--model {self.model} --num-processes {self.size.ranks} --checkpoint-folder FOLDER"
        if self.edition == "2.0":
            one = f"mlpstorage checkpointing run {what} --client-host-memory-in-gb {memory} --results-dir RESULTS_DIR"
        else:
            one = f"mlpstorage closed checkpointing {self.model} run file {what.split(' ', 2)[2]} --systemname SYSTEM"
        if self.memory_factor > MEMORY_FACTOR:
            return (one,)
        return (f"{one} --num-checkpoints-read 0", f"{one} --num-checkpoints-write 0")


def checkpoint_datasize(
    workload: Workload, *, edition: str | None, hosts: int, memory_gib_per_host: float
) -> CheckpointDatasize:
    """Return the sizes of a model's checkpoints by `ranks` processes on so many hosts.

    Raises:
        UserError: the editions have no such model, or so many ranks can't share it.
    """
    model = official_model(workload.model.name)
    if model is None or edition not in (None, *EDITIONS_WITH_CHECKPOINTS):
        known = ", ".join(each.workload for each in MODELS.values())
        seen = f"workload={workload.model.name}" + (f" of v{edition}" if edition else "")
        raise UserError(f"{seen} is not in the rules for checkpoints: wanted one of {known} of v2.0 or v3.0")
    size = checkpoint_size(workload.model.name, workload)
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
        wrong=wrong_size(name, model.name, size.ranks),
    )


def _other_settings(model: OfficialModel, workload: Workload) -> list[Finding]:
    """Tell where the model is cut or shaped in another way than the official one of that name."""
    official, own = model.settings().model, workload.model
    subset = replace(own.parallelism, data=official.parallelism.data)
    if replace(own, name=official.name, parallelism=subset) == official:
        return []
    seen = f"{own.name} differs from {model.name} in its numbers or in how it is cut over the ranks"
    return [Finding("error", "checkpoint.settings", seen, model.name, f"workload={model.workload}")]


def _findings(model: OfficialModel, size: CheckpointSize, hosts: int, edition: str) -> list[Finding]:
    found = []
    wanted, fix = f"{model.ranks} processes in CLOSED", f"ranks={model.ranks}"
    if size.ranks != model.ranks and not (edition == "2.0" and size.ranks == 8 and size.job_ranks == model.ranks):
        found.append(Finding("error", "checkpoint.processes", f"{size.ranks} processes", wanted, fix))
    each = size.ranks / hosts
    if each < RANKS_A_HOST:
        seen, fix = f"{size.ranks} processes on {hosts} hosts", "fewer hosts"
        found.append(Finding("error", "checkpoint.hosts", seen, f"more than {RANKS_A_HOST} on each", fix))
    return found


def largest_rank_memory_gib(size: CheckpointSize) -> float:
    """Return the memory that DLIO of v2.0 takes for its largest rank: its share, and the same again while reading."""
    return 2 * size.largest_rank_gib
