"""Size of a workload's checkpoint, and how ranks share it, computed from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.shards import parameters
from dlemu.config.schema import Workload

GB, GIB = 1e9, 2**30


@dataclass(frozen=True, kw_only=True)
class CheckpointSize:
    """Size of what the emulated ranks write of one checkpoint: tensors only, no headers. GB = 1e9, GiB = 2^30 bytes."""

    workload: str
    parameters: int
    """Parameters of the model; 0 if unknown."""
    ranks: int
    """Ranks that the run emulates."""
    job_ranks: int
    """All ranks of the job."""
    tensor: int
    pipeline: int
    data: int
    expert: int
    """`tensor` to `expert`: how the job's ranks divide the model, as in `model.parallelism`."""
    zero_stage: int
    files: int
    model_gb: float
    optimizer_gb: float
    total_gb: float
    total_gib: float
    """`total_gb` in the unit that DLIO calls GB."""
    largest_rank_gib: float
    smallest_rank_gib: float


def checkpoint_size(name: str, workload: Workload) -> CheckpointSize:
    """Return the size of what the workload's `ranks` write of its checkpoint; `name` is the workload's name.

    Raises:
        UserError: the model can't be divided over that many ranks.
    """
    plan = plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)
    grid, shards = plan.grid, [plan.shards(rank) for rank in plan.ranks]
    rank_bytes = [sum(shard.bytes for shard in own) for own in shards]
    model, optimizer = (
        sum(shard.bytes for own in shards for shard in own if shard.role == role) for role in ("model", "optimizer")
    )
    return CheckpointSize(
        workload=name,
        parameters=parameters(plan.model),
        ranks=len(plan.ranks),
        job_ranks=grid.ranks,
        tensor=grid.tensor,
        pipeline=grid.pipeline,
        data=grid.data,
        expert=grid.expert,
        zero_stage=grid.zero_stage,
        files=sum(map(len, shards)),
        model_gb=model / GB,
        optimizer_gb=optimizer / GB,
        total_gb=(model + optimizer) / GB,
        total_gib=(model + optimizer) / GIB,
        largest_rank_gib=max(rank_bytes) / GIB,
        smallest_rank_gib=min(rank_bytes) / GIB,
    )
