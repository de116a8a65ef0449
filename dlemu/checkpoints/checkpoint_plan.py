"""One checkpoint, planned: which rank of the job writes which files, how large they are, and which ranks run here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from datagen import registry
from dlemu.checkpoints.file_layout import FileLayout
from dlemu.checkpoints.grid import Grid, grid_of
from dlemu.checkpoints.shards import Role, Shard, shards_of_rank
from dlemu.config.schema import Checkpoint, Model

FORMATS = "dlemu.checkpoints.formats"


@dataclass(frozen=True, kw_only=True)
class CheckpointSizes:
    """How large one checkpoint is, of all ranks that take part."""

    files: int
    bytes: int
    tensor_bytes: int
    largest_rank_bytes: int
    """Of the files of the rank that has most."""


@dataclass(frozen=True)
class CheckpointPlan:
    """Who writes what of one checkpoint."""

    model: Model
    grid: Grid
    format: str
    ranks: range
    """The job's ranks that take part here: rank i of the run is `ranks[i]` of the job."""

    def shards(self, rank: int) -> tuple[Shard, ...]:
        """Return the shards of one of the job's ranks."""
        return shards_of_rank(self.model, self.grid, rank)

    def files(self, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that one of the job's ranks writes, in order."""
        return self._format.files(self, rank)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all files of a checkpoint that ranks write here."""
        return frozenset(layout.path for rank in self.ranks for layout in self.files(rank))

    @cached_property
    def _format(self) -> CheckpointFormat:
        made: CheckpointFormat = registry.find(FORMATS, self.format, "Format")()
        return made

    @cached_property
    def rank_bytes(self) -> tuple[int, ...]:
        """Bytes of the files of each rank that takes part here; counted once, also for those that it is sent to."""
        return tuple(sum(layout.size_bytes for layout in self.files(rank)) for rank in self.ranks)

    @property
    def sizes(self) -> CheckpointSizes:
        """How large the files are."""
        files = [layout for rank in self.ranks for layout in self.files(rank)]
        return CheckpointSizes(
            files=len(files),
            bytes=sum(layout.size_bytes for layout in files),
            tensor_bytes=sum(layout.tensor_bytes for layout in files),
            largest_rank_bytes=max(self.rank_bytes),
        )

    def tensor_bytes(self, role: Role | None = None) -> int:
        """Return the tensor bytes of all ranks that take part here, of model and optimizer or of one of them."""
        return sum(
            shard.bytes for rank in self.ranks for shard in self.shards(rank) if role is None or shard.role == role
        )


def plan_checkpoint(model: Model, settings: Checkpoint, ranks: int) -> CheckpointPlan:
    """Plan a checkpoint of the model by `ranks` ranks, as the settings say.

    Raises:
        UserError: so many ranks can't share the model as it is configured; lists every reason.
    """
    grid = grid_of(model, settings, ranks)
    return CheckpointPlan(model, grid, settings.format, range(settings.first_rank, settings.first_rank + ranks))


class CheckpointFormat(Protocol):
    """One format; its module has a class `Format` without arguments."""

    def files(self, plan: CheckpointPlan, rank: int) -> tuple[FileLayout, ...]:
        """Return the files that one of the job's ranks writes, in the order in which it writes them.

        No two ranks write one file. Pure: nothing is imported that is heavy, nothing is opened.
        """
        ...
