"""Step tables: the same rows as a plain array has, in order, whatever is chosen of them and however little is kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.rows import in_order, is_any, steps_of
from tests.metrics.test_loss import any_rows, make_steps


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
