"""What ranks can't share a model is refused before anything is written, as DLIO does, with what would do instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.checkpoints.checkpoint_plan import checkpoint_sizes, plan_checkpoint
from dlemu.checkpoints.grid import Grid, GridIndex, grid_of
from dlemu.checkpoints.shards import parameters
from dlemu.config import load
from dlemu.config.schema import Checkpoint
from tests.checkpoints.models import transformer

REFUSED: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({"pipeline": 2, "zero_stage": 3}, {}, 2, "ZeRO 3 shards every layer and expert over all ranks"),
    ({"data": 4}, {}, 4, r"model.parallelism.data is 4 with checkpoint.mode=default"),
    ({"data": 1}, {}, 4, r"model.parallelism.data is 1 with checkpoint.mode=default"),
    ({}, {"mode": "subset"}, 4, "model.parallelism.data is not set"),
    ({"tensor": 4}, {}, 6, r"ranks: 6, not a multiple of the 4 ranks.*wanted 4 or another multiple"),
    ({"tensor": 4}, {}, 2, r"not a multiple of the 4 ranks.*wanted 4"),
    ({"tensor": 4, "data": 2}, {"mode": "subset"}, 9, r"9 ranks take part: the job has 8"),
    ({"tensor": 4, "data": 2}, {"mode": "subset", "first_rank": 6}, 3, r"3 ranks take part: the job has 8"),
    ({"tensor": 4}, {"job_ranks": 10}, 2, r"checkpoint.job_ranks is 10, not a multiple"),
    ({"tensor": 4}, {"job_ranks": 16, "first_rank": 12}, 5, r"first_rank is 12 and 5 ranks take part: the job has 16"),
    ({"tensor": 4, "data": 2}, {"mode": "subset", "job_ranks": 16}, 4, "leave one of the two out"),
    ({"pipeline": 4}, {}, 4, "at least a layer for each stage"),
    ({"expert": 2}, {}, 2, "a number of experts that it divides"),
    ({"expert": 3, "num_experts": 4}, {}, 3, "a number of experts that it divides"),
    ({"expert": 4, "num_experts": 4}, {}, 6, r"there are 6 data-parallel ranks: wanted a divisor.*4 ranks"),
    ({"expert": 2, "num_experts": 4, "zero_stage": 3}, {}, 4, "ZeRO 3 shards every layer and expert over all ranks"),
]


@pytest.mark.parametrize(("model", "settings", "ranks", "words"), REFUSED)
def test_ranks_that_cannot_share_the_model(
    model: dict[str, Any], settings: dict[str, Any], ranks: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        grid_of(transformer(layers=3, **model), Checkpoint(**settings), ranks)


def test_all_reasons_are_told_at_once() -> None:
    model = transformer(layers=3, tensor=4, pipeline=2, zero_stage=3, data=2)
    with pytest.raises(UserError, match=r"(?s)3 problems.*ZeRO 3.*data is 2.*not a multiple of the 8"):
        grid_of(model, Checkpoint(), 4)


def test_the_order_of_ranks_is_dlios() -> None:
    grid = Grid(tensor=2, pipeline=3, data=2)
    assert grid.ranks == 12
    assert [grid.index_of(rank) for rank in (0, 1, 2, 7, 11)] == [
        GridIndex(0, 0, 0, 0),
        GridIndex(1, 0, 0, 1),
        GridIndex(0, 1, 0, 2),
        GridIndex(1, 0, 1, 1),
        GridIndex(1, 2, 1, 5),
    ]


def test_some_ranks_of_a_larger_job() -> None:
    model = transformer(layers=3, tensor=2)
    whole, some = grid_of(model, Checkpoint(), 8), grid_of(model, Checkpoint(job_ranks=8, first_rank=4), 4)
    subset = replace(model, parallelism=replace(model.parallelism, data=4))
    assert whole == some == grid_of(subset, Checkpoint(mode="subset"), 2)
    assert whole.data == 4


@pytest.mark.parametrize("settings", [{"job_ranks": 8}, {"mode": "subset"}])
def test_the_ranks_that_take_part_have_their_part_of_the_job(settings: dict[str, Any]) -> None:
    """Those from the first rank on, not as many others: of the same files."""
    model = transformer(layers=3, tensor=2, zero_stage=1, **({} if "job_ranks" in settings else {"data": 4}))
    whole = plan_checkpoint(model, Checkpoint(**settings), 8)
    some = plan_checkpoint(model, Checkpoint(first_rank=5, **settings), 3)
    assert some.ranks == range(5, 8)
    assert some.names == {shard.path for rank in (5, 6, 7) for shard in whole.shards(rank)}
    assert some.tensor_bytes() == sum(shard.bytes for rank in (5, 6, 7) for shard in whole.shards(rank))


def test_the_sizes_of_a_checkpoint_are_those_of_its_tensors() -> None:
    """Of half a job; three layers on three stages, of which the ends have more than the middle."""
    model = transformer(layers=3, tensor=2, pipeline=3, zero_stage=1, num_experts=4, expert=2)
    settings = Checkpoint(job_ranks=24)
    sizes = checkpoint_sizes(replace(load([]), model=model, checkpoint=settings, ranks=12))
    plan = plan_checkpoint(model, settings, 12)
    of_ranks = [sum(shard.bytes for shard in plan.shards(rank)) for rank in plan.ranks]
    assert len(set(of_ranks)) > 1
    assert sizes.largest_rank_bytes == max(of_ranks)
    assert sizes.tensor_bytes == sizes.bytes == sum(of_ranks)
    assert sizes.tensor_bytes == plan.tensor_bytes("model") + plan.tensor_bytes("optimizer")
    assert sizes.files == sum(len(plan.shards(rank)) for rank in plan.ranks)
    assert (sizes.parameters, sizes.format) == (parameters(model), "torch")
    assert (sizes.ranks, sizes.ranks_of_job, sizes.tensor, sizes.pipeline) == (12, 24, 2, 3)
    assert (sizes.data, sizes.zero_stage) == (4, 1)
