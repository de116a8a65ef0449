"""What one checkpoint of a workload is, and which ranks write it: arithmetic from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.shards import parameters
from dlemu.config.schema import Workload

GB, GIB = 1e9, 2**30


@dataclass(frozen=True, kw_only=True)
class CheckpointSize:
    """One checkpoint by the ranks that take part, without what its format adds. GB = 1e9 bytes, GiB = 2^30."""

    workload: str
    parameters: int
    """Of the model; 0 where they are not known."""
    ranks: int
    """That take part; `job_ranks` are all of the job."""
    job_ranks: int
    tensor: int
    pipeline: int
    data: int
    expert: int
    zero_stage: int
    files: int
    model_gb: float
    optimizer_gb: float
    total_gb: float
    total_gib: float
    """What DLIO calls GB."""
    largest_rank_gib: float
    smallest_rank_gib: float


def checkpoint_size(name: str, workload: Workload) -> CheckpointSize:
    """Return the checkpoint of the workload, which is called `name`, by its `ranks`.

    Raises:
        UserError: so many ranks can't share the model.
    """
    plan = plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)
    grid, shards = plan.grid, [plan.shards(rank) for rank in plan.ranks]
    of_ranks = [sum(shard.bytes for shard in own) for own in shards]
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
        largest_rank_gib=max(of_ranks) / GIB,
        smallest_rank_gib=min(of_ranks) / GIB,
    )
