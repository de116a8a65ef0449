"""Rates over time: nothing is lost or counted twice; and step tables, which have the rows that a plain array has."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.cache import delivered_between, mean_between
from dlemu.metrics.rates import Intervals, mean_within
from dlemu.metrics.rows import in_order, is_any, steps_of
from tests.metrics.test_loss import any_rows, make_steps

TIMES = np.array([0, 10, 20, 40], np.int64)
RATES = np.array([777.0, 1.0, 3.0, 5.0])
"""1 from 0 to 10, 3 from 10 to 20, 5 from 20 to 40; what came before the first reading is not known."""


@pytest.mark.parametrize(
    ("windows", "mean"),
    [
        ([(0, 10)], 1.0),
        ([(0, 40)], (10 * 1 + 10 * 3 + 20 * 5) / 40),
        ([(5, 15)], (5 * 1 + 5 * 3) / 10),
        ([(12, 14)], 3.0),
        ([(0, 5), (30, 40)], (5 * 1 + 10 * 5) / 15),
        ([(-100, 10)], 1.0),
        ([(20, 1000)], 5.0),
        ([(-100, 1000)], (10 * 1 + 10 * 3 + 20 * 5) / 40),
    ],
)
def test_the_mean_over_windows_is_weighed_by_time(windows: list[tuple[int, int]], mean: float) -> None:
    assert mean_within(TIMES, RATES, windows) == pytest.approx(mean)


@pytest.mark.parametrize("windows", [[], [(50, 60)], [(-20, -10)], [(7, 7)]])
def test_without_readings_in_a_window_there_is_no_mean(windows: list[tuple[int, int]]) -> None:
    assert math.isnan(mean_within(TIMES, RATES, windows))


@pytest.mark.parametrize("count", [0, 1])
def test_one_reading_is_no_interval(count: int) -> None:
    assert math.isnan(mean_within(TIMES[:count], RATES[:count], [(0, 40)]))
    assert math.isnan(mean_between(TIMES[:count], RATES[:count], 0, 40))
    assert mean_within(TIMES[:2], RATES[:2], [(0, 40)]) == 1.0


S = 1_000_000_000


@pytest.mark.parametrize(
    ("begin_s", "end_s", "megabytes"),
    [
        (0, 40, 10 * 1 + 10 * 3 + 20 * 5),
        (0, 10, 10.0),
        (5, 10, 10.0),  # from the last reading before the begin
        (5, 15, 10 * 1 + 10 * 3),  # to the first after the end
        (10, 20, 30.0),
        (11, 40, 10 * 3 + 20 * 5),
        (-2, 40, 140.0),  # 2 of 42 s are missed, less than a twentieth
        (-3, 40, math.nan),
        (0, 42, 140.0),
        (0, 43, math.nan),
        (41, 80, math.nan),
        (-40, -1, math.nan),
    ],
)
def test_what_was_delivered_is_counted_from_reading_to_reading(begin_s: int, end_s: int, megabytes: float) -> None:
    seen = delivered_between(TIMES * S, RATES, begin_s * S, end_s * S)
    assert seen == pytest.approx(megabytes, nan_ok=True)


INTERVALS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.01, 50), st.floats(0, 1e6)).map(
        lambda part: (part[0], sum(part[:2]), part[2])
    ),
    min_size=1,
    max_size=20,
)


def test_amounts_are_spread_evenly_over_their_time_and_add_up() -> None:
    spread = Intervals(np.array([0.0, 1.0]), np.array([2.0, 2.0]), np.array([0.0, 1.0, 2.0, 4.0]))
    rates = spread.rates(np.array([4.0, 3.0]))
    assert rates.tolist() == [2.0, 5.0, 0.0]


@given(INTERVALS, st.integers(1, 30))
def test_rates_over_all_time_give_the_amounts(intervals: list[tuple[float, float, float]], bins: int) -> None:
    starts, ends, amounts = (np.array(column) for column in zip(*intervals, strict=True))
    edges = np.linspace(-1, 200, bins + 1)
    rates = Intervals(starts, ends, edges).rates(amounts)
    assert float((rates * np.diff(edges)).sum()) == pytest.approx(amounts.sum(), rel=1e-6, abs=1e-6)


def plain(rows: StepRows) -> StepRows:
    """The rows in the order of a table."""
    return rows[np.lexsort([rows[name] for name in ("step", "block", "phase", "epoch", "rank")])]


@given(rows=any_rows(), data=st.data())
def test_a_table_has_the_rows_that_an_array_has(rows: StepRows, data: st.DataObject) -> None:
    table, ordered = in_order(rows), plain(rows)
    assert np.array_equal(np.asarray(table), ordered)
    mask = np.random.default_rng(data.draw(st.integers(0, 99))).random(len(rows)) < data.draw(st.floats(0, 1))
    start, stop = (data.draw(st.integers(0, len(rows))) for _ in range(2))
    step = data.draw(st.integers(1, 3))
    for chosen, expected in ((table[mask], ordered[mask]), (table[start:stop:step], ordered[start:stop:step])):
        assert np.array_equal(np.asarray(chosen), expected)
        assert chosen.values("rank") == np.unique(expected["rank"]).tolist()
        for name, parts in (("rank", chosen.by_rank), ("epoch", chosen.by_epoch)):
            groups = [expected[expected[name] == value] for value in np.unique(expected[name])]
            assert all(np.array_equal(np.asarray(part), group) for part, group in zip(parts, groups, strict=True))
        places = np.random.default_rng(0).permutation(len(expected))[::2]
        for name in STEP_DTYPE.names or ():
            assert np.array_equal(chosen[places][name], expected[name][places])
            assert is_any(chosen, name) == is_any(expected, name) == expected[name].any()
        first, last = chosen.ends
        for name in STEP_DTYPE.names or ():
            blocks = [block for block in np.split(expected[name], _block_starts(expected)) if len(block)]
            assert first[name].tolist() == [int(block[0]) for block in blocks]
            assert last[name].tolist() == [int(block[-1]) for block in blocks]


@given(rows=any_rows(), first=st.integers(0, 3), last=st.integers(0, 3), share=st.floats(0.3, 1))
def test_the_ends_of_blocks_are_left_out(rows: StepRows, first: int, last: int, share: float) -> None:
    some = plain(rows)[np.random.default_rng(1).random(len(rows)) < share]
    holes = np.arange(len(some)) % 3 > 0
    for chosen, table in ((some, in_order(some)), (some[holes], in_order(some)[holes])):
        blocks = np.split(chosen, _block_starts(chosen))
        expected = [block[first : max(first, len(block) - last)] for block in blocks]
        assert np.array_equal(np.asarray(table.trimmed(first, last)), np.concatenate(expected))


def _block_starts(rows: StepRows) -> list[int]:
    keys = np.stack([rows[name] for name in ("rank", "epoch", "block")])
    found: list[int] = (np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist()
    return found


def test_ranks_that_were_cut_short_share_the_steps_they_have() -> None:
    rows = make_steps([[0.0, 5.0, 1.0]] * 4)
    table = in_order(rows[(rows["rank"] != 1) | (rows["step"] < 3)])
    steps = steps_of(table)
    assert steps.count == 4
    assert steps.sum(1).tolist() == [3, 3, 2, 2]
    assert steps.maximum(table["wait_ns"]).tolist() == [5e6, 5e6, 1e6, 1e6]
    assert table["rank"][steps.first(-table["wait_ns"])].tolist() == [1, 1, 2, 2]
    assert table["rank"][steps.first()].tolist() == [0] * 4
