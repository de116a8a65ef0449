"""Files, tensors and bytes of each rank: equal to what MLPerf Storage's models are in DLIO, and adding up for any."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, checkpoint_sizes, plan_checkpoint
from dlemu.checkpoints.grid import Grid, GridIndex, grid_of
from dlemu.checkpoints.shards import Shard, Tensor, parameters, shards_of_rank
from dlemu.config import load
from dlemu.config.schema import Checkpoint, Model
from tests.checkpoints.models import transformer

GIB = 2**30
FULL = {
    # model: (ranks, parameters, files, files a rank, GiB of model, of optimizer, in all, largest and smallest rank)
    "llama3_8b": (8, 8030261248, 16, (2, 2), 14.957527, 89.746994, 104.704521, 13.088065, 13.088065),
    "llama3_70b": (64, 69882617856, 128, (2, 2), 130.183716, 781.028412, 911.212128, 14.237690, 14.237690),
    "llama3_405b": (512, 405853388800, 1544, (1, 6), 756.014893, 4536.233826, 5292.248718, 12.318084, 8.859832),
    "llama3_1t": (1024, 1183035102480, 2072, (1, 5), 2203.661289, 13222.927975, 15426.589264, 17.965485, 12.913016),
}
"""Of DLIO's arithmetic; equal to files that it wrote and to `checkpoint_size_GB` of published results."""
SUBSETS = {
    # model: (copies, files, files a rank, GiB of model, of optimizer, in all, a rank's)
    "llama3_70b": (8, 16, 2, 16.272965, 97.628551, 113.901516, 14.237690),
    "llama3_405b": (2, 48, 6, 27.666016, 70.878654, 98.544669, 12.318084),
    "llama3_1t": (2, 32, 4, 40.419769, 103.304125, 143.723882, 17.965485),
}
FILES = {
    # model: {(bytes of a file's tensors, number of these): files}
    "llama3_8b": {(2007565312, 195): 8, (12045637632, 6): 8},
    "llama3_70b": {(2184120320, 483): 64, (13103482368, 6): 64},
    "llama3_405b": {(525336576, 1): 16, (796983296, 6): 1008, (32768, 1): 8, (9513171840, 6): 512},
    "llama3_1t": {(829559808, 1): 16, (2297744064, 6): 1024, (51744, 1): 8, (13865244924, 6): 1024},
}


def shipped(name: str, *overrides: str) -> CheckpointPlan:
    workload = load([f"workload={name}", "checkpoint.format=raw", *overrides])
    return plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)


def by_rank(plan: CheckpointPlan) -> dict[int, tuple[Shard, ...]]:
    return {rank: plan.shards(rank) for rank in plan.ranks}


@pytest.mark.parametrize("name", FULL)
def test_the_models_of_mlperf_storage(name: str) -> None:
    ranks, count, files, files_a_rank, *sizes = FULL[name]
    plan = shipped(name)
    shards = by_rank(plan)
    assert len(plan.ranks) == plan.grid.ranks == ranks
    assert parameters(plan.model) == count
    numbers = [len(own) for own in shards.values()]
    assert (sum(numbers), (min(numbers), max(numbers))) == (files, files_a_rank)
    of_ranks = [sum(shard.bytes for shard in own) / GIB for own in shards.values()]
    measured = [plan.tensor_bytes(role) / GIB for role in ("model", "optimizer")]
    assert [*measured, plan.tensor_bytes() / GIB, max(of_ranks), min(of_ranks)] == pytest.approx(sizes, abs=6e-5)
    assert name != "llama3_8b" or plan.tensor_bytes() / GIB == 104.70452117919922, "as a published run printed it"
    kinds = Counter((shard.bytes, len(shard.tensors)) for own in shards.values() for shard in own)
    assert kinds == FILES[name]


@pytest.mark.parametrize("name", SUBSETS)
def test_the_subsets_of_mlperf_storage(name: str) -> None:
    copies, files, files_a_rank, *sizes = SUBSETS[name]
    plan = shipped(name, "ranks=8", "checkpoint.mode=subset", f"model.parallelism.data={copies}")
    shards = by_rank(plan)
    assert plan.grid == shipped(name).grid, "the whole job is the same"
    assert {len(own) for own in shards.values()} == {files_a_rank}
    assert sum(map(len, shards.values())) == files
    measured = [plan.tensor_bytes(role) / GIB for role in ("model", "optimizer", None)]
    assert [*measured, sum(shard.bytes for shard in shards[3]) / GIB] == pytest.approx(sizes, abs=2e-5)
    as_some = shipped(name, "ranks=8", f"checkpoint.job_ranks={plan.grid.ranks}")
    assert by_rank(as_some) == shards


def test_names_are_dlios() -> None:
    zero3 = shipped("llama3_70b")
    assert [shard.path for shard in zero3.shards(8 + 5)] == [
        "zero_pp_rank_1_mp_rank_5_model_states.pt",
        "zero_pp_rank_1_mp_rank_5_optim_states.pt",
    ]
    staged = shipped("llama3_405b")
    assert [shard.path for shard in staged.shards(9)] == [
        *(f"layer_{layer}-model_9_model_states.pt" for layer in (5, 6, 7, 8)),
        "zero_pp_rank_0_mp_rank_9_optim_states.pt",
    ]
    assert [shard.path for shard in staged.shards(255)] == [
        *(f"layer_{layer}-model_255_model_states.pt" for layer in (124, 125, 126, 127, 128)),
        "zero_pp_rank_0_mp_rank_255_optim_states.pt",
    ]
    assert [shard.path for shard in staged.shards(256)] == ["zero_pp_rank_1_mp_rank_0_optim_states.pt"]
    whole = shipped("llama_7b")
    assert [shard.path for shard in whole.shards(0)] == [
        "model_0_model_states.pt",
        "zero_pp_rank_0_mp_rank_0_optim_states.pt",
    ]
    assert [tensor.name for tensor in whole.shards(0)[0].tensors[:4]] == ["0.0", "1.0", "1.1", "1.2"]
    assert [tensor.name for tensor in whole.shards(0)[1].tensors] == list("012345")


def test_without_zero_one_copy_writes_all() -> None:
    model = transformer(layers=2, tensor=2)
    grid = Grid(tensor=2, data=3)
    written = [shards_of_rank(model, grid, rank) for rank in range(6)]
    assert [len(own) for own in written] == [2, 2, 0, 0, 0, 0]
    assert written[0][1].tensors[0].shape == (parameters(model) // 2,)


def test_megatron_in_dlios_older_way() -> None:
    """32 ranks, 4 tensor parallel, 8 stages: 5.24 GiB of optimizer and 0.31 of layers each, as DLIO documents it."""
    model = Model(
        type="megatron_deepspeed",
        num_layers=40,
        model_size_bytes=30102,
        layer_parameters=(52583936, 209715200),
        optimization_groups=(1009254400, 865075200, 793600),
    )
    grid = Grid(tensor=4, pipeline=8, zero_stage=1)
    for rank in (0, 31):
        sized, *layers, optimizer = shards_of_rank(model, grid, rank)
        assert (sized.path, sized.bytes) == (f"model_states-{rank}.pt", 30102)
        assert len(layers) == 5
        assert optimizer.bytes == 3 * (1009254400 + 865075200 + 793600)
        assert sum(shard.bytes for shard in layers) == 5 * (52583936 + 209715200) // 4
    assert load(["workload=megatron_deepspeed"]).model.model_size_bytes == 5953243520


def test_a_model_of_a_size_is_one_file_of_whoever_writes() -> None:
    model = Model(model_size_bytes=1000)
    one, every = (plan_checkpoint(model, Checkpoint(type=kind), 3) for kind in ("rank_zero", "all_ranks"))
    assert [[shard.path for shard in one.shards(rank)] for rank in range(3)] == [["model_states-0.pt"], [], []]
    assert every.tensor_bytes() == 3000


def test_experts_are_files_of_the_first_rank_that_has_them() -> None:
    plan = shipped("qwen3_235b")
    assert parameters(plan.model) == pytest.approx(235.1e9, rel=1e-3), "as published"
    shards = by_rank(plan)
    paths = Counter(shard.path for own in shards.values() for shard in own)
    experts = [path for path in paths if "_expert_" in path]
    assert len(experts) == 94 * 128 * 2, "each of two tensor-parallel ranks has half of each"
    assert max(paths.values()) == 1
    # Rank 0 has layers 1 to 12 and 16 of 128 experts; rank 8 * 16 is data-parallel rank 8, another copy of them.
    own = [shard.path for shard in shards[0] if "_expert_" in shard.path]
    assert (len(own), own[0]) == (12 * 16, "layer_1_expert_0_mp_rank_00_model_states.pt")
    assert [shard.path for shard in shards[8 * 16]] == ["zero_pp_rank_8_mp_rank_0_optim_states.pt"]
    assert plan.tensor_bytes("model") == pytest.approx(2 * parameters(plan.model), rel=1e-4)
    assert plan.tensor_bytes("optimizer") == pytest.approx(12 * parameters(plan.model), rel=1e-3)


def test_zero_3_cuts_experts_as_any_matrix() -> None:
    model = transformer(layers=2, zero_stage=3, num_experts=4, moe_ffn_hidden_size=8, num_dense_layers=1)
    grid = Grid(data=4, zero_stage=3)
    shards = [shard for rank in range(4) for shard in shards_of_rank(model, grid, rank)]
    assert not [shard for shard in shards if "expert" in shard.path]
    assert sum(shard.bytes for shard in shards if shard.role == "model") == 2 * parameters(model)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Model, Grid]:
    """Draw a model whose numbers can be divided by what its job cuts them into, so that nothing is lost."""
    zero_stage = draw(st.integers(0, 3))
    tensor = draw(st.sampled_from([1, 2, 4]))
    pipeline = 1 if zero_stage == 3 else draw(st.integers(1, 5))
    data = draw(st.sampled_from([1, 2, 4, 8]))
    experts = draw(st.sampled_from([0, 0, 4]))
    expert = draw(st.sampled_from([1, 2, 4])) if experts and data >= 4 and zero_stage < 3 else 1
    model = transformer(
        layers=draw(st.integers(pipeline, 9)),
        tensor=tensor,
        pipeline=pipeline,
        zero_stage=zero_stage,
        expert=expert,
        hidden_size=32,
        vocab_size=draw(st.sampled_from([32, 96])),
        ffn_hidden_size=draw(st.sampled_from([32, 64])),
        num_experts=experts,
        num_dense_layers=draw(st.integers(0, 3)) if experts else 0,
        num_shared_experts=draw(st.integers(0, 2)) if experts else 0,
    )
    return model, Grid(tensor=tensor, pipeline=pipeline, data=data, expert=expert, zero_stage=zero_stage)


@given(jobs())
def test_all_ranks_together_have_the_model_once(job: tuple[Model, Grid]) -> None:
    model, grid = job
    shards = [shard for rank in range(grid.ranks) for shard in shards_of_rank(model, grid, rank)]
    paths = [shard.path for shard in shards]
    assert len(set(paths)) == len(paths)
    whole: dict[str, list[Tensor]] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.part.duplicate == 0:
                whole.setdefault(tensor.part.name, []).append(tensor)
    for tensors in whole.values():
        assert sorted(tensor.part.piece for tensor in tensors) == list(range(tensors[0].part.pieces))
        assert len({tensor.shape for tensor in tensors}) == 1
    elements = sum(
        math.prod(tensor.shape) for name, own in whole.items() if name.startswith("model.") for tensor in own
    )
    assert elements == parameters(model)
    optimizer = sum(shard.bytes for shard in shards if shard.role == "optimizer")
    writers = grid.ranks if grid.zero_stage else grid.model_ranks
    extra = 3 * 4 * 5 * model.transformer.hidden_size
    # Each rank's share is rounded down, of the layers' and of the experts' parameters.
    lost = 12 * parameters(model) - (optimizer - writers * extra)
    assert 0 <= lost < 2 * 12 * writers
    # Vectors are on every tensor-parallel rank, unless ZeRO 3 makes no difference to that either.
    copies = sum(shard.bytes for shard in shards if shard.role == "model") - 2 * parameters(model)
    vectors = 2 * model.num_layers + 1
    assert copies == 2 * (grid.tensor - 1) * vectors * model.transformer.hidden_size


@pytest.mark.parametrize(("name", "most"), [("llama3_70b", 10 * 64 * 489), ("llama3_1t", 120 * 2072)])
def test_planning_costs_as_much_as_tensors_are_named_and_files_written(name: str, most: int) -> None:
    """No loop over all layers or ranks hides in one rank's, and what ranks have in common is made once for all.

    Of 70b each of 64 ranks has 489 tensors in two files; of 1t all ranks have 2072 files of few tensors.
    """
    job = load([f"workload={name}"])
    plan = plan_checkpoint(job.model, job.checkpoint, job.ranks)
    calls = Counter[str]()

    def count(frame: object, event: str, _: object) -> None:
        if event == "call":
            calls["all"] += 1

    sys.setprofile(count)
    try:
        for rank in plan.ranks:
            plan.files(rank)
    finally:
        sys.setprofile(None)
    assert calls["all"] < most


# Ranks that share a model, or can't: refused before anything is written, as DLIO does, with what would do instead


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
