import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.rates import training_ns


def make_rows(waits: list[int], *, rank: int = 0, epoch: int = 1, block: int = 1, compute: int = 100) -> StepRows:
    """Rows of one block whose host is exactly on time."""
    rows = np.zeros(len(waits), STEP_DTYPE)
    rows["rank"], rows["epoch"], rows["block"] = rank, epoch, block
    rows["step"] = np.arange(1, len(waits) + 1)
    rows["wait_ns"], rows["compute_ns"] = waits, compute
    rows["free_ns"] = np.concatenate([[0], np.cumsum(np.array(waits) + compute)[:-1]])
    rows["asked_ns"] = rows["free_ns"]
    rows["got_ns"] = rows["ready_ns"] = rows["free_ns"] + rows["wait_ns"]
    rows["slept_ns"] = rows["met_ns"] = rows["got_ns"] + compute
    rows["samples"], rows["app_bytes"] = 7, 7000
    return rows


def test_the_headline_drops_the_first_step_of_each_block() -> None:
    rows = np.concatenate([make_rows([900, 0, 100]), make_rows([900, 0, 100], epoch=2), make_rows([50, 0], block=2)])
    kept = kept_rows(rows, 1, 0)
    assert sorted(kept["step"].tolist()) == [2, 2, 2, 3, 3]
    assert au_percent(kept) == pytest.approx(100 * 500 / 700)
    assert au_percent(rows) == pytest.approx(100 * 800 / (800 + 2050))


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), start=st.integers(0, 3), end=st.integers(0, 3))
def test_exclusion_takes_the_ends_of_every_block_whatever_the_order(lengths: list[int], start: int, end: int) -> None:
    rows = np.concatenate([make_rows([0] * n, rank=i % 2, epoch=i) for i, n in enumerate(lengths)])
    shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
    kept = kept_rows(shuffled, start, end)
    expected = [s for n in lengths for s in range(1, n + 1)[start : max(start, n - end)]]
    assert sorted(kept["step"].tolist()) == sorted(expected)


def test_hosts_whose_clocks_differ_have_one_training_time() -> None:
    here, there = make_rows([300, 0]), make_rows([300, 0], rank=1)
    for column in ("free_ns", "asked_ns", "got_ns", "ready_ns", "slept_ns", "met_ns"):
        there[column] += 3600 * 10**9
    assert training_ns(np.concatenate([here, there])) == 500
