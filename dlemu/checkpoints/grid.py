"""The tensor-, pipeline- and data-parallel grid of a job's ranks, and each rank's indices in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from datagen.spec import refuse
from dlemu.config.schema import Checkpoint, Model


@dataclass(frozen=True)
class GridIndex:
    """A rank's indices in the grid, from 0."""

    tensor: int
    pipeline: int
    data: int
    model: int  # index among the ranks that share one replica of the model


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A job's degrees of parallelism, which determine its number of ranks."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    zero_stage: int = 0
    all_ranks: bool = False
    """Every rank writes a model without layers (given only by its size), not rank 0 alone."""

    @property
    def model_ranks(self) -> int:
        """Ranks that share one replica of the model."""
        return self.tensor * self.pipeline

    @property
    def ranks(self) -> int:
        """All ranks of the job."""
        return self.model_ranks * self.data

    def index_of(self, rank: int) -> GridIndex:
        """Return a rank's indices; the tensor index varies fastest, then pipeline, then data, as in DLIO."""
        data, model = divmod(rank, self.model_ranks)
        pipeline, tensor = divmod(model, self.tensor)
        return GridIndex(tensor, pipeline, data, model)


def grid_of(model: Model, settings: Checkpoint, ranks: int) -> Grid:
    """Return the job's grid. Raises UserError, as DLIO does, with all reasons why the ranks can't divide the model."""
    degrees, job_ranks = model.parallelism, settings.job_ranks or ranks
    data = degrees.data
    if settings.mode != "subset":  # the number of ranks decides
        data = max(1, job_ranks // (degrees.tensor * degrees.pipeline))
    grid = Grid(
        tensor=degrees.tensor,
        pipeline=degrees.pipeline,
        data=data,
        expert=degrees.expert,
        zero_stage=degrees.zero_stage,
        all_ranks=settings.type == "all_ranks" and not model.has_layers,
    )
    refuse(_problems(model, settings, grid, ranks))
    return grid


def _problems(model: Model, settings: Checkpoint, grid: Grid, ranks: int) -> Iterator[str]:
    """Yield the reasons why the job's ranks can't divide the model, or why `ranks` ranks can't be emulated."""
    degrees, experts, subset = model.parallelism, model.transformer.num_experts, settings.mode == "subset"
    if model.has_layers and model.num_layers < degrees.pipeline:
        yield (
            f"model.num_layers is {model.num_layers} and model.parallelism.pipeline {degrees.pipeline}: wanted at "
            "least a layer for each stage"
        )
    if degrees.zero_stage == 3 and (degrees.pipeline > 1 or degrees.expert > 1):
        yield (
            f"model.parallelism has zero_stage 3, pipeline {degrees.pipeline} and expert {degrees.expert}: ZeRO 3 "
            "shards every layer and expert over all ranks; wanted pipeline=1 and expert=1, or zero_stage 0 to 2"
        )
    if degrees.expert > 1 and (experts == 0 or experts % degrees.expert):
        yield (
            f"model.parallelism.expert is {degrees.expert} and model.transformer.num_experts {experts}: wanted a "
            "number of experts that it divides"
        )
    if subset and degrees.data < 1:
        yield (
            "checkpoint.mode is 'subset' and model.parallelism.data is not set: wanted the number of data-parallel "
            "copies of the whole job, such as model.parallelism.data=8"
        )
        return
    job_ranks = grid.ranks if subset else settings.job_ranks or ranks
    if subset and settings.job_ranks not in (0, job_ranks):
        yield (
            f"checkpoint.job_ranks is {settings.job_ranks}, but tensor {degrees.tensor} x pipeline {degrees.pipeline} "
            f"x data {degrees.data} are {job_ranks} ranks: leave one of the two out"
        )
    if not subset and degrees.data > 0:
        yield (
            f"model.parallelism.data is {degrees.data} with checkpoint.mode=default: there it follows from the number "
            "of ranks; leave it out, or set checkpoint.mode=subset"
        )
    if job_ranks % grid.model_ranks:  # never with a subset
        multiple = max(1, job_ranks // grid.model_ranks) * grid.model_ranks
        yield (
            f"{'checkpoint.job_ranks is' if settings.job_ranks else 'ranks:'} {job_ranks}, not a multiple of the "
            f"{grid.model_ranks} ranks that share one copy of the model (tensor {degrees.tensor} x pipeline "
            f"{degrees.pipeline}): wanted {multiple} or another multiple, or checkpoint.mode=subset"
        )
    if settings.first_rank + ranks > job_ranks:
        yield (
            f"checkpoint.first_rank is {settings.first_rank} and {ranks} ranks take part: the job has {job_ranks}; "
            "wanted fewer ranks, or a larger job (checkpoint.job_ranks; in mode=subset model.parallelism.data)"
        )
    if grid.data % grid.expert:
        yield (
            f"model.parallelism.expert is {grid.expert}, but there are {grid.data} data-parallel ranks: wanted a "
            f"divisor of them; {grid.model_ranks * grid.expert} ranks or a multiple would do"
        )
