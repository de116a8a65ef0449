"""A plan of streams: every rank as many steps, no sample twice, and what a rank reads is what the plan says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from datagen.errors import DatasetError
from dlemu.plan.samples import RankPlan
from dlemu.plan.streams import StreamPlan, Streams
from tests.plan.plans import make_stream_plan as make_plan


@st.composite
def plans(draw: st.DrawFn) -> StreamPlan:
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


@given(plan=plans(), epoch=st.integers(1, 3), data=st.data())
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


@given(plan=plans())
def test_ranks_share_no_file_when_there_are_enough(plan: StreamPlan) -> None:
    files = [set(plan.streams(rank, 1, plan.steps_per_epoch).files.tolist()) for rank in range(plan.ranks)]
    if plan.by_file:
        assert sum(map(len, files)) == len(set.union(*files))
    else:
        assert plan.num_files < plan.ranks


def test_the_order_is_tf_datas_interleave() -> None:
    plan = make_plan(ranks=1, num_files=3, num_samples_per_file=2, batch_size=6, cycle=2, file_shuffle=False)
    assert RankPlan(plan, 0).sample_ids(1, 1).tolist() == [0, 2, 1, 3, 4, 5]


def test_blocks_of_records_take_turns_and_the_last_are_shorter() -> None:
    plan = make_plan(
        ranks=1, num_files=3, num_samples_per_file=3, batch_size=9, cycle=2, block_length=2, file_shuffle=False
    )
    assert RankPlan(plan, 0).sample_ids(1, 1).tolist() == [0, 1, 3, 4, 2, 5, 6, 7, 8]


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


def test_batches_of_a_rank_are_its_steps_and_beyond_the_last_the_last() -> None:
    part = RankPlan(make_plan(), 1)
    last = part.plan.steps_per_epoch
    assert last == 7
    rows = part.batches(2, np.array([1, 3, last, last + 5]))
    assert rows.tolist() == [part.sample_ids(2, step).tolist() for step in (1, 3, last, last)]
