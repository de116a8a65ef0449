"""The plan of a checkpoint (which files each rank of the emulated job writes), and the base of the file formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

from datagen import registry
from dlemu.checkpoints.grid import Grid, grid_of
from dlemu.checkpoints.shards import FileLayout, Role, Shard, parameters, shards_of_rank
from dlemu.config.schema import Checkpoint, Model, Workload

FORMATS = "dlemu.checkpoints.formats"
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class CheckpointSizes:
    """The files and bytes of a checkpoint that the emulated ranks write, and their place in the job."""

    parameters: int  # of the model; 0 if unknown
    format: str
    files: int
    bytes: int
    tensor_bytes: int
    largest_rank_bytes: int  # of the rank that writes the most
    ranks: int  # emulated by the run
    first_rank: int  # the first emulated rank, by its number in the job
    ranks_of_job: int
    tensor: int
    pipeline: int
    data: int
    zero_stage: int
    """`tensor` to `zero_stage`: how the job's ranks divide the model, as in `model.parallelism`."""

    @property
    def tensor_gib(self) -> float:
        """`tensor_bytes` in the unit that DLIO calls GB, 2^30 bytes."""
        return self.tensor_bytes / GIB


@dataclass(frozen=True)
class CheckpointPlan:
    """Maps each rank to the files of a checkpoint that it writes."""

    model: Model
    grid: Grid
    format: str
    ranks: range
    """The ranks of the job that this run emulates: rank i of the run is rank `ranks[i]` of the job."""

    def shards(self, rank: int) -> tuple[Shard, ...]:
        """Return the shards that a rank of the job writes, in order."""
        return shards_of_rank(self.model, self.grid, rank)

    def files(self, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that a rank of the job writes, in order."""
        return _files(self, rank)

    @cached_property
    def names(self) -> frozenset[str]:
        """Paths of all files that this run writes of a checkpoint, relative to the checkpoint's folder."""
        return frozenset(layout.path for rank in self.ranks for layout in self.files(rank))

    @cached_property
    def sizes(self) -> CheckpointSizes:
        """Sizes of the checkpoint, and which ranks write it; computed once, and pickled with the plan."""
        grid = self.grid
        bytes_by_rank = list[int]()
        files = tensor_bytes = 0
        for rank in self.ranks:
            layouts = self.files(rank)
            files += len(layouts)
            tensor_bytes += sum(layout.tensor_bytes for layout in layouts)
            bytes_by_rank.append(sum(layout.size_bytes for layout in layouts))
        return CheckpointSizes(
            parameters=parameters(self.model),
            format=self.format,
            files=files,
            bytes=sum(bytes_by_rank),
            tensor_bytes=tensor_bytes,
            largest_rank_bytes=max(bytes_by_rank),
            ranks=len(self.ranks),
            first_rank=self.ranks.start,
            ranks_of_job=grid.ranks,
            tensor=grid.tensor,
            pipeline=grid.pipeline,
            data=grid.data,
            zero_stage=grid.zero_stage,
        )

    def tensor_bytes(self, role: Role | None = None) -> int:
        """Return the tensor bytes of all emulated ranks: those of one role, or of model and optimizer together."""
        shards = chain.from_iterable(map(self.shards, self.ranks))
        return sum(shard.bytes for shard in shards if role in (None, shard.role))


@lru_cache(1)  # a rank needs its own files several times; those of all ranks of a large job would fill the memory
def _files(plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
    checkpoint_format: CheckpointFormat = registry.find(FORMATS, plan.format, "Format")()
    return checkpoint_format.files(plan, rank)


class CheckpointFormat:
    """Base of file formats: a subclass `Format` overrides `layout` if each shard is a file, else `files`; no I/O."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that a rank of the job writes, in order; no two ranks write the same file."""
        return tuple(self.layout(shard) for shard in plan.shards(rank))

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        raise NotImplementedError(f"{type(self).__module__} lays out neither a shard's file nor all files of a rank")


def plan_checkpoint(model: Model, settings: Checkpoint, ranks: int) -> CheckpointPlan:
    """Plan a checkpoint of the model by `ranks` emulated ranks; raises UserError as `grid_of` does."""
    grid = grid_of(model, settings, ranks)
    return CheckpointPlan(model, grid, settings.format, range(settings.first_rank, settings.first_rank + ranks))


def checkpoint_sizes(workload: Workload) -> CheckpointSizes:
    """Return the sizes of the workload's checkpoint without the format's headers; raises UserError."""
    settings = workload.checkpoint
    plan = plan_checkpoint(workload.model, replace(settings, format="raw"), workload.ranks)
    return replace(plan.sizes, format=settings.format)
