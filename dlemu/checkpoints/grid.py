"""How the ranks of a job share a model: tensor, pipeline and data parallel, and which of each a rank is."""

from __future__ import annotations

from dataclasses import dataclass

from datagen.errors import UserError
from datagen.spec import joined_problems
from dlemu.config.schema import Checkpoint, Model


@dataclass(frozen=True)
class Place:
    """Which part of the model a rank has."""

    tensor: int
    pipeline: int
    data: int
    model: int
    """Number of the part among those of one copy of the model."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All ranks of a job."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    zero_stage: int = 0
    all_ranks: bool = False
    """A model that is given by its size alone is written by every rank, not by rank 0 only."""

    @property
    def model_ranks(self) -> int:
        """Ranks that share one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def ranks(self) -> int:
        """All ranks of the job."""
        return self.model_ranks * self.data

    def place(self, rank: int) -> Place:
        """Return what a rank has: neighbours share matrices, then come the stages, then the copies (DLIO's order)."""
        return Place(
            tensor=rank % self.tensor,
            pipeline=rank // self.tensor % self.pipeline,
            data=rank // self.model_ranks,
            model=rank % self.model_ranks,
        )


def grid_of(model: Model, settings: Checkpoint, ranks: int) -> Grid:
    """Return how the job's ranks share the model, for `ranks` ranks that take part here.

    Raises:
        UserError: the ranks can't share it so; lists every reason.
    """
    problems = problems_of(model, settings, ranks)
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
    cut = model.parallelism
    if settings.mode == "subset":
        return cut.data
    return max(1, (settings.job_ranks or ranks) // (cut.tensor * cut.pipeline))


def problems_of(model: Model, settings: Checkpoint, ranks: int) -> list[str]:
    """Return why so many ranks can't share the model as it is configured, each as a sentence; DLIO refuses them too."""
    cut, each = model.parallelism, model.parallelism.tensor * model.parallelism.pipeline
    problems = _shape_problems(model)
    if cut.pipeline > 1 and cut.zero_stage == 3:
        problems.append(
            f"model.parallelism.pipeline is {cut.pipeline} and zero_stage is 3: ZeRO 3 shards every layer over all "
            "ranks, so there are no stages; wanted pipeline=1, or zero_stage 0 to 2"
        )
    if settings.mode == "subset":
        problems += _subset_problems(model, settings, ranks)
    else:
        problems += _whole_problems(model, settings, ranks)
    if not problems and _copies(model, settings, ranks) % cut.expert:
        problems.append(
            f"model.parallelism.expert is {cut.expert}, but there are {_copies(model, settings, ranks)} data-parallel "
            f"ranks: wanted a divisor of them; {each * cut.expert} ranks or a multiple would do"
        )
    return problems


def _whole_problems(model: Model, settings: Checkpoint, ranks: int) -> list[str]:
    cut, each = model.parallelism, model.parallelism.tensor * model.parallelism.pipeline
    whole = settings.job_ranks or ranks
    problems = []
    if cut.data > 0:
        problems.append(
            f"model.parallelism.data is {cut.data} with checkpoint.mode=default: there it follows from the number of "
            "ranks; leave it out, or set checkpoint.mode=subset"
        )
    if whole % each:
        key = "checkpoint.job_ranks is" if settings.job_ranks else "ranks:"
        problems.append(
            f"{key} {whole}, not a multiple of the {each} ranks that share one copy of the model (tensor "
            f"{cut.tensor} x pipeline {cut.pipeline}): wanted {max(1, whole // each) * each} or another multiple, or "
            "checkpoint.mode=subset"
        )
    if settings.first_rank + ranks > whole:
        problems.append(
            f"checkpoint.first_rank is {settings.first_rank} and {ranks} ranks take part: the job has {whole}; wanted "
            "first_rank + ranks of at most checkpoint.job_ranks"
        )
    return problems


def _subset_problems(model: Model, settings: Checkpoint, ranks: int) -> list[str]:
    cut = model.parallelism
    if cut.data < 1:
        return [
            "checkpoint.mode is 'subset' and model.parallelism.data is not set: wanted the number of data-parallel "
            "copies of the whole job, such as model.parallelism.data=8"
        ]
    whole = cut.tensor * cut.pipeline * cut.data
    problems = []
    if settings.job_ranks and settings.job_ranks != whole:
        problems.append(
            f"checkpoint.job_ranks is {settings.job_ranks}, but tensor {cut.tensor} x pipeline {cut.pipeline} x data "
            f"{cut.data} are {whole} ranks: leave one of the two out"
        )
    if settings.first_rank + ranks > whole:
        problems.append(
            f"ranks {settings.first_rank} to {settings.first_rank + ranks - 1} take part, but tensor {cut.tensor} x "
            f"pipeline {cut.pipeline} x data {cut.data} are {whole} ranks: wanted fewer ranks, or a larger "
            "model.parallelism.data"
        )
    return problems


def _shape_problems(model: Model) -> list[str]:
    cut, shape = model.parallelism, model.transformer
    problems = []
    if model.has_layers and model.num_layers < cut.pipeline:
        problems.append(
            f"model.num_layers is {model.num_layers} and model.parallelism.pipeline {cut.pipeline}: wanted at least a "
            "layer for each stage"
        )
    if cut.expert > 1 and cut.zero_stage == 3:
        problems.append(
            f"model.parallelism.expert is {cut.expert} and zero_stage is 3: ZeRO 3 shards the experts over all ranks "
            "like every layer; wanted expert=1, or zero_stage 0 to 2"
        )
    if cut.expert > 1 and shape.num_experts % cut.expert | (shape.num_experts == 0):
        problems.append(
            f"model.parallelism.expert is {cut.expert} and model.transformer.num_experts {shape.num_experts}: wanted a "
            "number of experts that it divides"
        )
    return problems
