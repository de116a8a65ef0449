"""How the ranks of a job share a model: the tensor-, pipeline- and data-parallel grid, and each rank's place in it."""

from __future__ import annotations

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
        UserError: the model can't be divided so; lists every reason.
    """
    problems = sharing_problems(model, settings, ranks)
    if problems:
        raise UserError(joined_problems(problems))
    cut = model.parallelism
    return Grid(
        tensor=cut.tensor,
        pipeline=cut.pipeline,
        data=_copies(model, settings, ranks),
        expert=cut.expert,
        zero_stage=cut.zero_stage,
        all_ranks=settings.type == "all_ranks" and not model.has_layers,
    )


def _copies(model: Model, settings: Checkpoint, ranks: int) -> int:
    """Return the number of data-parallel copies of the model."""
    dims = model.parallelism
    if settings.mode == "subset":
        return dims.data
    return max(1, (settings.job_ranks or ranks) // (dims.tensor * dims.pipeline))


def sharing_problems(model: Model, settings: Checkpoint, ranks: int) -> list[str]:
    """Return the reasons, as sentences, why `ranks` ranks can't share the model; DLIO refuses the same cases."""
    dims, each = model.parallelism, model.parallelism.tensor * model.parallelism.pipeline
    problems = _shape_problems(model)
    if dims.pipeline > 1 and dims.zero_stage == 3:
        problems.append(
            f"model.parallelism.pipeline is {dims.pipeline} and zero_stage is 3: ZeRO 3 shards every layer over all "
            "ranks, so there are no stages; wanted pipeline=1, or zero_stage 0 to 2"
        )
    if settings.mode == "subset":
        problems += _subset_mode_problems(model, settings, ranks)
    else:
        problems += _default_mode_problems(model, settings, ranks)
    if not problems and _copies(model, settings, ranks) % dims.expert:
        problems.append(
            f"model.parallelism.expert is {dims.expert}, but there are {_copies(model, settings, ranks)} data-parallel "
            f"ranks: wanted a divisor of them; {each * dims.expert} ranks or a multiple would do"
        )
    return problems


def _default_mode_problems(model: Model, settings: Checkpoint, ranks: int) -> list[str]:
    dims, each = model.parallelism, model.parallelism.tensor * model.parallelism.pipeline
    whole = settings.job_ranks or ranks
    problems = []
    if dims.data > 0:
        problems.append(
            f"model.parallelism.data is {dims.data} with checkpoint.mode=default: there it follows from the number of "
            "ranks; leave it out, or set checkpoint.mode=subset"
        )
    if whole % each:
        key = "checkpoint.job_ranks is" if settings.job_ranks else "ranks:"
        problems.append(
            f"{key} {whole}, not a multiple of the {each} ranks that share one copy of the model (tensor "
            f"{dims.tensor} x pipeline {dims.pipeline}): wanted {max(1, whole // each) * each} or another multiple, or "
            "checkpoint.mode=subset"
        )
    if settings.first_rank + ranks > whole:
        problems.append(
            f"checkpoint.first_rank is {settings.first_rank} and {ranks} ranks take part: the job has {whole}; wanted "
            "first_rank + ranks of at most checkpoint.job_ranks"
        )
    return problems


def _subset_mode_problems(model: Model, settings: Checkpoint, ranks: int) -> list[str]:
    dims = model.parallelism
    if dims.data < 1:
        return [
            "checkpoint.mode is 'subset' and model.parallelism.data is not set: wanted the number of data-parallel "
            "copies of the whole job, such as model.parallelism.data=8"
        ]
    whole = dims.tensor * dims.pipeline * dims.data
    problems = []
    if settings.job_ranks and settings.job_ranks != whole:
        problems.append(
            f"checkpoint.job_ranks is {settings.job_ranks}, but tensor {dims.tensor} x pipeline {dims.pipeline} x data "
            f"{dims.data} are {whole} ranks: leave one of the two out"
        )
    if settings.first_rank + ranks > whole:
        problems.append(
            f"ranks {settings.first_rank} to {settings.first_rank + ranks - 1} take part, but tensor {dims.tensor} x "
            f"pipeline {dims.pipeline} x data {dims.data} are {whole} ranks: wanted fewer ranks, or a larger "
            "model.parallelism.data"
        )
    return problems


def _shape_problems(model: Model) -> list[str]:
    dims, shape = model.parallelism, model.transformer
    problems = []
    if model.has_layers and model.num_layers < dims.pipeline:
        problems.append(
            f"model.num_layers is {model.num_layers} and model.parallelism.pipeline {dims.pipeline}: wanted at least a "
            "layer for each stage"
        )
    if dims.expert > 1 and dims.zero_stage == 3:
        problems.append(
            f"model.parallelism.expert is {dims.expert} and zero_stage is 3: ZeRO 3 shards the experts over all ranks "
            "like every layer; wanted expert=1, or zero_stage 0 to 2"
        )
    if dims.expert > 1 and shape.num_experts % dims.expert | (shape.num_experts == 0):
        problems.append(
            f"model.parallelism.expert is {dims.expert} and model.transformer.num_experts {shape.num_experts}: wanted "
            "a number of experts that it divides"
        )
    return problems
