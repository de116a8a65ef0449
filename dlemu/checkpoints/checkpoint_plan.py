"""The plan of one checkpoint: which files each rank of the emulated training job writes, and which ranks run here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from datagen import registry
from dlemu.checkpoints.grid import Grid, grid_of
from dlemu.checkpoints.shards import FileLayout, Role, Shard, parameters, shards_of_rank
from dlemu.config.schema import Checkpoint, Model, Workload

FORMATS = "dlemu.checkpoints.formats"
GB, GIB = 1e9, 2**30


@dataclass(frozen=True, kw_only=True)
class CheckpointSizes:
    """Files and bytes of one checkpoint, over all emulated ranks."""

    files: int
    bytes: int
    tensor_bytes: int
    largest_rank_bytes: int
    """Bytes that the rank with the most bytes writes."""


@dataclass(frozen=True)
class CheckpointPlan:
    """Which files each rank writes of one checkpoint."""

    model: Model
    grid: Grid
    format: str
    ranks: range
    """The job's ranks that this run emulates, maybe not all: rank i of the run is rank `ranks[i]` of the job."""

    def shards(self, rank: int) -> tuple[Shard, ...]:
        """Return the shards of one of the job's ranks."""
        return shards_of_rank(self.model, self.grid, rank)

    def files(self, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that one of the job's ranks writes, in order."""
        layouts = self._last_files.get(rank)
        if layouts is None:
            layouts = self._format.files(self, rank)
            self._last_files.clear()  # those of all ranks of a large job would fill the memory
            self._last_files[rank] = layouts
        return layouts

    @cached_property
    def _last_files(self) -> dict[int, tuple[FileLayout, ...]]:
        """The files of the rank that was asked for last: a rank asks for its own several times in each checkpoint."""
        return {}

    @cached_property
    def names(self) -> frozenset[str]:
        """Paths of all files that this run writes of a checkpoint, relative to the checkpoint's folder."""
        return frozenset(layout.path for rank in self.ranks for layout in self.files(rank))

    @cached_property
    def _format(self) -> CheckpointFormat:
        return cast("CheckpointFormat", registry.find(FORMATS, self.format, "Format")())

    @cached_property
    def rank_bytes(self) -> tuple[int, ...]:
        """Bytes that each emulated rank writes; computed once, and pickled with the plan."""
        return tuple(sum(layout.size_bytes for layout in self.files(rank)) for rank in self.ranks)

    @property
    def sizes(self) -> CheckpointSizes:
        """Number and sizes of the files."""
        files = [layout for rank in self.ranks for layout in self.files(rank)]
        return CheckpointSizes(
            files=len(files),
            bytes=sum(layout.size_bytes for layout in files),
            tensor_bytes=sum(layout.tensor_bytes for layout in files),
            largest_rank_bytes=max(self.rank_bytes),
        )

    def tensor_bytes(self, role: Role | None = None) -> int:
        """Return the tensor bytes of all emulated ranks: of `role` (model or optimizer), or of both."""
        return sum(size for of, size in self._role_bytes.items() if role in (of, None))

    @cached_property
    def _role_bytes(self) -> Counter[Role]:
        """Tensor bytes by role: computed once, as each checkpoint's rate needs their sum over all ranks and layers."""
        sizes = Counter[Role]()
        for rank in self.ranks:
            for shard in self.shards(rank):
                sizes[shard.role] += shard.bytes
        return sizes


class CheckpointFormat:
    """A file format, whose module has a class `Format`, made without arguments; it implements `layout` or `files`.

    Both are pure arithmetic: no heavy imports, no files opened.
    """

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that one of the job's ranks writes, in order; no two ranks write the same file."""
        return tuple(self.layout(shard) for shard in plan.shards(rank))

    def layout(self, shard: Shard) -> FileLayout:
        """Return the layout of one shard's file."""
        raise NotImplementedError(f"{type(self).__module__} lays out neither a shard's file nor all files of a rank")


def plan_checkpoint(model: Model, settings: Checkpoint, ranks: int) -> CheckpointPlan:
    """Plan a checkpoint of the model by `ranks` emulated ranks, under the given settings.

    Raises:
        UserError: the model can't be divided over that many ranks; lists every reason.
    """
    grid = grid_of(model, settings, ranks)
    return CheckpointPlan(model, grid, settings.format, range(settings.first_rank, settings.first_rank + ranks))


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
