"""How the ranks of a job share a model: the tensor-, pipeline- and data-parallel grid, and each rank's place in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from datagen.errors import UserError
from datagen.spec import joined_problems
from dlemu.config.schema import Checkpoint, Model


@dataclass(frozen=True)
class Place:
    """A rank's indices in the grid, each from 0."""

    tensor: int
    pipeline: int
    data: int
    model: int
    """Index among the ranks that share one copy of the model."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Degrees of parallelism of a job, which determine its number of ranks."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    zero_stage: int = 0
    all_ranks: bool = False
    """A model given only by its size (without layers) is written by every rank, instead of by rank 0 alone."""

    @property
    def model_ranks(self) -> int:
        """Ranks that share one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def ranks(self) -> int:
        """All ranks of the job."""
        return self.model_ranks * self.data

    def place(self, rank: int) -> Place:
        """Return a rank's indices; the tensor index varies fastest, then pipeline, then data (DLIO's order)."""
        return Place(
            tensor=rank % self.tensor,
            pipeline=rank // self.tensor % self.pipeline,
            data=rank // self.model_ranks,
            model=rank % self.model_ranks,
        )


def grid_of(model: Model, settings: Checkpoint, ranks: int) -> Grid:
    """Return the grid of a job of which this run emulates `ranks` ranks.

    Raises:
        UserError: the model can't be divided so; lists every reason. DLIO refuses the same cases.
    """
    cut, whole = model.parallelism, settings.job_ranks or ranks
    grid = Grid(
        tensor=cut.tensor,
        pipeline=cut.pipeline,
        data=cut.data if settings.mode == "subset" else max(1, whole // (cut.tensor * cut.pipeline)),
        expert=cut.expert,
        zero_stage=cut.zero_stage,
        all_ranks=settings.type == "all_ranks" and not model.has_layers,
    )
    problems = [*_impossible_shapes(model), *_impossible_ranks(model, settings, grid, ranks)]
    if problems:
        raise UserError(joined_problems(problems))
    if grid.data % cut.expert:
        raise UserError(
            f"model.parallelism.expert is {cut.expert}, but there are {grid.data} data-parallel ranks: wanted a "
            f"divisor of them; {grid.model_ranks * cut.expert} ranks or a multiple would do"
        )
    return grid


def _impossible_shapes(model: Model) -> Iterator[str]:
    cut, experts = model.parallelism, model.transformer.num_experts
    if model.has_layers and model.num_layers < cut.pipeline:
        yield (
            f"model.num_layers is {model.num_layers} and model.parallelism.pipeline {cut.pipeline}: wanted at least a "
            "layer for each stage"
        )
    if cut.zero_stage == 3 and (cut.pipeline > 1 or cut.expert > 1):
        yield (
            f"model.parallelism has zero_stage 3, pipeline {cut.pipeline} and expert {cut.expert}: ZeRO 3 shards every "
            "layer and expert over all ranks; wanted pipeline=1 and expert=1, or zero_stage 0 to 2"
        )
    if cut.expert > 1 and (experts == 0 or experts % cut.expert):
        yield (
            f"model.parallelism.expert is {cut.expert} and model.transformer.num_experts {experts}: wanted a number of "
            "experts that it divides"
        )


def _impossible_ranks(model: Model, settings: Checkpoint, grid: Grid, ranks: int) -> Iterator[str]:
    cut, each, subset = model.parallelism, grid.model_ranks, settings.mode == "subset"
    whole = grid.ranks if subset else settings.job_ranks or ranks
    if subset and cut.data < 1:
        yield (
            "checkpoint.mode is 'subset' and model.parallelism.data is not set: wanted the number of data-parallel "
            "copies of the whole job, such as model.parallelism.data=8"
        )
        return
    if subset and settings.job_ranks not in (0, whole):
        yield (
            f"checkpoint.job_ranks is {settings.job_ranks}, but tensor {cut.tensor} x pipeline {cut.pipeline} x data "
            f"{cut.data} are {whole} ranks: leave one of the two out"
        )
    if not subset and cut.data > 0:
        yield (
            f"model.parallelism.data is {cut.data} with checkpoint.mode=default: there it follows from the number of "
            "ranks; leave it out, or set checkpoint.mode=subset"
        )
    if not subset and whole % each:
        yield (
            f"{'checkpoint.job_ranks is' if settings.job_ranks else 'ranks:'} {whole}, not a multiple of the {each} "
            f"ranks that share one copy of the model (tensor {cut.tensor} x pipeline {cut.pipeline}): wanted "
            f"{max(1, whole // each) * each} or another multiple, or checkpoint.mode=subset"
        )
    if settings.first_rank + ranks > whole:
        yield (
            f"checkpoint.first_rank is {settings.first_rank} and {ranks} ranks take part: the job has {whole}; wanted "
            "fewer ranks, or a larger job (checkpoint.job_ranks; in mode=subset model.parallelism.data)"
        )
