"""Plans of samples and of streams: every rank as many steps, no sample twice, and orders that never change."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datagen.errors import DatasetError
from dlemu.plan.samples import Plan, PlanAhead, RankPlan, hash_samples, permute
from dlemu.plan.streams import StreamPlan, Streams
from tests.plan.plans import make_plan as make
from tests.plan.plans import make_stream_plan as make_plan

plans = st.builds(
    Plan,
    num_files=st.integers(1, 60),
    num_samples_per_file=st.integers(1, 9),
    batch_size=st.integers(1, 7),
    ranks=st.integers(1, 9),
    file_shuffle=st.booleans(),
    sample_shuffle=st.booleans(),
    seed=st.integers(0, 2**40),
    seed_change_epoch=st.booleans(),
)


def epoch_samples(plan: Plan, epoch: int) -> list[int]:
    return [
        int(sample)
        for rank in range(plan.ranks)
        for step in range(1, plan.steps_per_epoch + 1)
        for sample in RankPlan(plan, rank).sample_ids(epoch, step)
    ]


@given(plan=plans, epoch=st.integers(1, 5))
def test_each_sample_is_read_once_but_for_the_dropped_ones(plan: Plan, epoch: int) -> None:
    samples = epoch_samples(plan, epoch)
    assert len(set(samples)) == len(samples)
    assert 0 <= plan.num_samples - len(samples) < plan.batch_size * plan.ranks
    assert all(0 <= sample < plan.num_samples for sample in samples)


def test_without_shuffle_each_rank_reads_a_stretch_in_order() -> None:
    plan = make()
    assert epoch_samples(plan, 1) == list(range(200))
    assert RankPlan(plan, 1).sample_ids(1, 1).tolist() == [50, 51, 52, 53, 54]


def test_sample_shuffle_tears_files_apart() -> None:
    samples = epoch_samples(make(sample_shuffle=True), 1)
    assert sum(a // 4 == b // 4 for a, b in pairwise(samples)) < 20


@pytest.mark.parametrize("changes", [{}, {"file_shuffle": True}, {"sample_shuffle": True}, {"batch_size": 7}])
def test_each_worker_reads_a_stretch_of_its_own(changes: dict[str, object]) -> None:
    plan, in_turn = make(ranks=2, worker_streams=3, **changes), make(ranks=2, **changes)
    assert sorted(epoch_samples(plan, 1)) == sorted(epoch_samples(in_turn, 1))
    length = plan.steps_per_epoch // 3
    for rank in (0, 1):
        steps = [step for worker in range(3) for step in range(worker + 1, 3 * length + 1, 3)]
        own = [RankPlan(plan, rank).sample_ids(1, step).tolist() for step in steps]
        assert own == [RankPlan(in_turn, rank).sample_ids(1, step).tolist() for step in range(1, 3 * length + 1)]
        known = plan.runs(rank, 1, np.array(steps))
        if known is not None:
            assert [[first + i for first, count in one.runs for i in range(count)] for one in known] == own


def test_epochs_differ_only_when_the_seed_changes() -> None:
    changing, fixed = make(file_shuffle=True), make(file_shuffle=True, seed_change_epoch=False)
    assert epoch_samples(changing, 1) != epoch_samples(changing, 2)
    assert epoch_samples(fixed, 1) == epoch_samples(fixed, 2)
    orders = [epoch_samples(plan, 1) for plan in (changing, make(file_shuffle=True, seed=124), make())]
    assert all(one != other for one, other in combinations(orders, 2))
    assert orders[0] == changing.samples_at(1, np.arange(200)).tolist()


def test_a_plan_is_small_whatever_the_dataset() -> None:
    huge = make(num_files=1_000_000, num_samples_per_file=277_203_535, sample_shuffle=True)
    assert len(pickle.dumps(RankPlan(huge, 3))) < 500
    ids = RankPlan(huge, 3).sample_ids(1, 12345)
    assert len(set(ids.tolist())) == 5
    assert ids.max() < huge.num_samples


@given(plan=plans, rank=st.integers(0, 8), steps=st.lists(st.integers(1, 70), min_size=1, max_size=20))
def test_planning_ahead_gives_the_same_batches(plan: Plan, rank: int, steps: list[int]) -> None:
    if plan.steps_per_epoch == 0:
        return
    mine = RankPlan(plan, rank % plan.ranks)
    ahead = PlanAhead(mine, plan.batch_size)
    for epoch, step in ((epoch, min(step, plan.steps_per_epoch)) for epoch in (1, 2) for step in sorted(steps)):
        assert ahead.batch(epoch, step)[0].tolist() == mine.sample_ids(epoch, step).tolist()
        assert ahead.batch(epoch, step)[1] == hash_samples(mine.sample_ids(epoch, step))


@settings(max_examples=40)
@given(plan=plans, epoch=st.integers(1, 3))
def test_a_file_shuffle_moves_whole_files_however_many_samples_are_asked_for(plan: Plan, epoch: int) -> None:
    plan = replace(plan, file_shuffle=True, sample_shuffle=False)
    order = plan.samples_at(epoch, np.arange(plan.num_samples)).reshape(plan.num_files, -1)
    assert (order % plan.num_samples_per_file == np.arange(plan.num_samples_per_file)).all()
    assert (order // plan.num_samples_per_file == order[:, :1] // plan.num_samples_per_file).all()
    one_by_one = [plan.samples_at(epoch, np.array([position])).item() for position in range(plan.num_samples)]
    assert order.ravel().tolist() == one_by_one


@pytest.mark.parametrize(("changing", "seeds"), [(True, [124, 125, 126]), (False, [123, 123, 123])])
def test_the_seed_of_an_epoch_is_dlios_the_seed_plus_its_number(changing: bool, seeds: list[int]) -> None:
    plan = make(seed_change_epoch=changing)
    assert [plan.epoch_seed(epoch) for epoch in (1, 2, 3)] == seeds


@given(plan=plans, epoch=st.integers(1, 3), shuffled=st.booleans())
def test_runs_are_the_batches_in_order(plan: Plan, epoch: int, shuffled: bool) -> None:
    plan = replace(
        plan, file_shuffle=shuffled, sample_shuffle=False, num_samples_per_file=plan.num_samples_per_file + 1
    )
    for rank in range(plan.ranks if plan.steps_per_epoch else 0):
        steps = np.arange(1, plan.steps_per_epoch + 1)
        runs = plan.runs(rank, epoch, steps)
        assert runs is not None
        assert [batch.tolist() for batch in runs] == plan.batches(rank, epoch, steps).tolist()
        assert [hash_samples(batch) for batch in runs] == [
            hash_samples(ids) for ids in plan.batches(rank, epoch, steps)
        ]


def test_hashes_are_those_of_splitmix64() -> None:
    """Its first output for seed 0 is E220A8397B1DCDAF; logs of older runs are held against these numbers."""
    assert hash_samples(np.array([0])) == 0xE220A8397B1DCDAF - 2**64
    assert [hash_samples(np.array([one])) for one in (1, 2**40)] == [-7995527694508729151, 2296115805719413641]
    assert hash_samples(np.array([2**40, 0, 1])) == hash_samples(np.array([0, 1, 2**40])) == -7851947545840259591


def test_just_enough_samples_do() -> None:
    make(num_files=5).check("train")
    with pytest.raises(DatasetError, match=r"num_files_train=8 or more"):
        make(num_files=4, num_samples_per_file=3, batch_size=6).check("train")
    with pytest.raises(DatasetError, match=r"has 16 samples .* 4 ranks .* fewer ranks, .*num_files_eval=5 or more"):
        make(num_files=4).check("valid")


# Permutations.


@given(n=st.integers(0, 3000), seed=st.integers(0, 2**64 - 1))
def test_every_shuffle_is_a_bijection(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, seed)), np.arange(n))


@given(n=st.integers(1, 10**12), seed=st.integers(0, 2**32), position=st.integers(0, 10**12))
def test_a_position_is_computed_alone_and_stays_in_range(n: int, seed: int, position: int) -> None:
    position %= n
    alone = permute(np.array([position]), n, seed)[0]
    among = permute(np.array([0, position, n - 1]), n, seed)[1]
    assert 0 <= alone < n
    assert alone == among


def test_seeds_give_different_orders_that_look_random_and_tear_neighbours_apart() -> None:
    n = 100_000
    first, second = permute(np.arange(n), n, 1), permute(np.arange(n), n, 2)
    assert (first == second).mean() < 0.01
    assert (first == np.arange(n)).mean() < 0.01
    assert abs(np.corrcoef(np.arange(n), first)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05
    steps = np.abs(np.diff(first))
    assert (steps == 1).mean() < 0.001
    assert abs(steps.mean() / (n / 3) - 1) < 0.05  # two independent uniform places lie n/3 apart on average


def test_the_orders_never_change() -> None:
    """What a run of an older version read is recomputed from its seed."""
    orders = [permute(np.arange(n), n, seed).tolist() for n, seed in ((10, 123), (7, 0), (1, 5), (2, 3), (2, 4))]
    assert orders[:4] == [[9, 6, 5, 2, 3, 8, 4, 7, 1, 0], [3, 0, 2, 1, 4, 6, 5], [0], [0, 1]]
    assert {tuple(permute(np.arange(2), 2, seed).tolist()) for seed in range(20)} == {(0, 1), (1, 0)}
    far = permute(np.array([0, 1, 12345, 10**12 - 1]), 10**12, 2**70 + 9)
    assert far.tolist() == [72546429045, 774832952194, 516658440978, 712235415240]
    assert far.dtype == np.int64
    assert permute(np.array([0, 1]), 1000, -5).tolist() == [541, 349]


# Streams: what a rank reads is what the plan says


@st.composite
def stream_plans(draw: st.DrawFn) -> StreamPlan:
    plan = make_plan(
        num_files=draw(st.integers(1, 20)),
        num_samples_per_file=draw(st.integers(1, 20)),
        batch_size=draw(st.integers(1, 7)),
        ranks=draw(st.integers(1, 9)),
        cycle=draw(st.integers(1, 5)),
        block_length=draw(st.integers(1, 25)),
        file_shuffle=draw(st.booleans()),
    )
    assume(plan.steps_per_epoch > 0)
    return plan


def samples_of(plan: StreamPlan, streams: Streams) -> list[int]:
    return [
        int(file) * plan.num_samples_per_file + streams.first + record * streams.stride
        for file, count in zip(streams.files, streams.counts, strict=True)
        for record in range(count)
    ]


@given(plan=stream_plans(), epoch=st.integers(1, 3), data=st.data())
def test_ranks_read_exactly_what_is_planned_and_no_sample_twice(
    plan: StreamPlan, epoch: int, data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, plan.steps_per_epoch))
    seen: list[int] = []
    for rank in range(plan.ranks):
        part = RankPlan(plan, rank)
        planned = np.concatenate([part.sample_ids(epoch, step) for step in range(1, steps + 1)])
        assert sorted(samples_of(plan, plan.streams(rank, epoch, steps))) == sorted(planned.tolist())
        seen += planned.tolist()
    assert len(set(seen)) == len(seen) == steps * plan.batch_size * plan.ranks
    assert min(seen) >= 0
    assert max(seen) < plan.num_samples


@given(plan=stream_plans())
def test_ranks_share_no_file_when_there_are_enough(plan: StreamPlan) -> None:
    files = [set(plan.streams(rank, 1, plan.steps_per_epoch).files.tolist()) for rank in range(plan.ranks)]
    if plan.by_file:
        assert sum(map(len, files)) == len(set.union(*files))
    else:
        assert plan.num_files < plan.ranks


@pytest.mark.parametrize(
    ("block_length", "samples", "order"), [(1, 2, [0, 2, 1, 3, 4, 5]), (2, 3, [0, 1, 3, 4, 2, 5, 6, 7, 8])]
)
def test_the_order_is_tf_datas_interleave(block_length: int, samples: int, order: list[int]) -> None:
    """Blocks of records take turns, and the last are shorter."""
    shape = {"num_files": 3, "num_samples_per_file": samples, "batch_size": 3 * samples, "block_length": block_length}
    plan = make_plan(ranks=1, cycle=2, file_shuffle=False, **shape)
    assert RankPlan(plan, 0).sample_ids(1, 1).tolist() == order


def test_epochs_take_files_in_another_order() -> None:
    plan = make_plan(num_files=40)
    assert plan.streams(0, 1, 5).files.tolist() != plan.streams(0, 2, 5).files.tolist()
    same = make_plan(num_files=40, seed_change_epoch=False)
    assert same.streams(0, 1, 5).files.tolist() == same.streams(0, 2, 5).files.tolist()
    assert same.streams(0, 1, 5).seed == same.streams(0, 2, 5).seed


def test_only_the_files_of_the_steps_asked_for_are_opened() -> None:
    plan = make_plan(num_files=100, num_samples_per_file=1000, cycle=1)
    assert plan.streams(0, 1, 300).counts.tolist() == [1000, 200]


def test_too_few_samples_are_told() -> None:
    with pytest.raises(DatasetError, match=r"each of 8 ranks has 2 files and uses 0 samples of each.*pytorch"):
        make_plan(num_files=2, num_samples_per_file=3, ranks=8).check("train")
    with pytest.raises(DatasetError, match=r"the one rank has 2 files and uses 1 sample.*: use a smaller batch"):
        make_plan(num_files=2, num_samples_per_file=1, ranks=1).check("train")


def test_batches_of_a_rank_are_its_steps_and_beyond_the_last_the_last_or_all_again() -> None:
    part = RankPlan(make_plan(), 1)
    last = part.plan.steps_per_epoch
    assert last == 7
    rows = part.batches(2, np.array([1, 3, last, last + 5]))
    assert rows.tolist() == [part.sample_ids(2, step).tolist() for step in (1, 3, last, last)]
    again = replace(part, endless=True).batches(2, np.array([1, last, last + 1, 2 * last]))
    assert again.tolist() == [part.sample_ids(2, step).tolist() for step in (1, last, 1, last)]
