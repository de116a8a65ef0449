"""Where the loss went: the shares add up and go to what the slowest waited for; who made the others wait is named."""

from __future__ import annotations

from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.loss import Loss, emulated_percent, loss_percent
from dlemu.metrics.rows import as_table
from dlemu.metrics.stragglers import find_slow_folders, find_stragglers
from dlemu.plan.samples import RankPlan, hash_samples
from tests.plan.plans import make_plan

MS = 1_000_000


def make_steps(ends_ms: list[list[float]], compute_ms: list[list[float]] | None = None, **stamps: Any) -> StepRows:
    """Rows of some steps from when each rank's batch came (ms after the step began); so are the stamps."""
    came = np.array(ends_ms)
    rows = np.zeros(came.shape, STEP_DTYPE)
    compute = np.broadcast_to(10.0 if compute_ms is None else np.array(compute_ms), came.shape)
    rows["rank"], rows["epoch"], rows["block"] = np.arange(came.shape[1]), 1, 1
    rows["step"] = np.arange(1, len(came) + 1)[:, np.newaxis]
    rows["compute_ns"], rows["wait_ns"] = compute * MS, np.maximum(came, 0) * MS
    ends = rows["wait_ns"] + rows["compute_ns"]
    rows["sync_ns"] = ends.max(axis=1, keepdims=True) - ends
    starts = np.concatenate([[0], np.cumsum(ends.max(axis=1))[:-1]])
    rows["free_ns"] = rows["asked_ns"] = starts[:, np.newaxis] + 1_000 * MS
    rows["ready_ns"] = rows["finished_ns"] = rows["free_ns"] + (came * MS).astype(np.int64)
    rows["started_ns"] = rows["finished_ns"] - 100 * MS
    rows["read_ns"] = 100 * MS
    for name, value in stamps.items():
        rows[name] = rows["free_ns"] + value * MS if name in ("started_ns", "finished_ns", "asked_ns") else value * MS
    flat: StepRows = rows.reshape(-1)
    return flat


@st.composite
def any_rows(draw: st.DrawFn) -> StepRows:
    """Rows of ranks that wait, compute and meet as they do, with traces that may be anything."""
    ranks, steps, blocks = draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = []
    for block in range(1, blocks + 1):
        rows = make_steps(
            random.uniform(-20, 30, (steps, ranks)).tolist(), random.uniform(1, 40, (steps, ranks)).tolist()
        )
        rows["block"], rows["epoch"] = block, draw(st.integers(1, 2))
        for name in ("started_ns", "finished_ns", "asked_ns"):
            rows[name] += random.integers(-50 * MS, 50 * MS, len(rows))
        rows["read_ns"] = random.integers(0, 200 * MS, len(rows))
        parts.append(rows)
    return np.concatenate(parts)[random.permutation(ranks * steps * blocks)]


@given(rows=any_rows(), start=st.integers(0, 2), end=st.integers(0, 1), cut=st.integers(0, 10))
def test_the_shares_add_up_to_what_utilisation_lacks(rows: StepRows, start: int, end: int, cut: int) -> None:
    """Of a whole run, and of one that was cut short."""
    rows = rows[: len(rows) - cut] if len(rows) > cut else rows
    kept = kept_rows(rows, start, end)
    for some in (rows, kept) if len(kept) else (rows,):
        shares = astuple(loss_percent(some, kept))
        assert sum(shares) == pytest.approx(100 - au_percent(some), abs=1e-9)
        assert min(shares) >= -1e-9


@pytest.mark.parametrize(
    ("stamps", "part"),
    [
        ({}, "reading"),
        ({"read_ns": 0}, "decoding"),
        ({"finished_ns": -1, "started_ns": -9}, "hand_over"),
        ({"finished_ns": 40, "started_ns": 40, "asked_ns": 0}, "queueing"),
        ({"finished_ns": 40, "started_ns": 40, "asked_ns": 40}, "hand_over"),
    ],
)
def test_a_wait_goes_to_what_kept_the_batch(stamps: dict[str, Any], part: str) -> None:
    rows = make_steps([[40.0], [40.0]], **stamps)
    assert asdict(loss_percent(rows, rows)) == pytest.approx(asdict(Loss()) | {part: 80.0})


def test_a_worker_s_time_is_split_as_it_spent_it_and_the_slowest_says_what_all_waited_for() -> None:
    rows = make_steps([[40.0]], read_ns=25)
    assert astuple(loss_percent(rows, rows))[1:3] == pytest.approx((20, 60))
    rows = make_steps([[5.0, 40.0, 0.0]])
    rows["read_ns"] = [100 * MS, 0, 100 * MS]
    assert astuple(loss_percent(rows, rows))[1:3] == pytest.approx((0, 80))


def test_what_longer_computations_cost_is_nobody_s_reading() -> None:
    rows = make_steps([[0.0, 0.0], [0.0, 2.0]], [[10, 30], [10, 30]])
    shares = loss_percent(rows, rows)
    total = 2 * (30 + 32)
    assert shares.uneven_computation == pytest.approx(100 * 40 / total)
    assert shares.reading == pytest.approx(100 * 4 / total)
    assert emulated_percent(rows) == pytest.approx(100 * (total - 4) / total), "4 ms of waiting are the emulator's"


def test_nothing_measured_has_no_shares() -> None:
    nothing = np.zeros(0, STEP_DTYPE)
    assert loss_percent(nothing, nothing) == Loss()


# stragglers


def test_one_slow_rank_is_named_with_its_steps_and_its_loss() -> None:
    rows = make_steps([[0.0, 0.0, 30.0, 0.0]] * 3 + [[0.0] * 4] + [[0.0, 10.0, 30.0, 0.0]])
    (found,) = find_stragglers(rows, (0,) * 4, ("here",))
    assert found.numbers == {
        "rank": 2,
        "host": "here",
        "steps": 4,
        "mainly": "reading",
        "mean_delay_ms": pytest.approx((3 * 30 + 20) / 4),
        "loss_percent": pytest.approx(100 * (3 * 30 + 20) / (4 * 40 + 10)),
    }


@pytest.mark.parametrize(
    ("ends_ms", "compute_ms"),
    [
        ([[30.0 if rank == step % 4 else 0.0 for rank in range(4)] for step in range(12)], None),
        ([[30.0] * 4] * 5, None),
        ([[30.0]] * 5, None),
        ([[0.0, 0.0]] * 4, [[10, 90]] * 4),
    ],
    ids=["slow in turns", "all together", "alone", "longer computations"],
)
def test_nobody_is_named_who_did_not_make_others_wait(ends_ms: list[list[float]], compute_ms: Any) -> None:
    rows = make_steps(ends_ms, compute_ms)
    assert not list(find_stragglers(rows, (0,) * len(ends_ms[0]), ("here",)))


@given(rows=any_rows())
def test_nobody_causes_more_than_was_lost(rows: StepRows) -> None:
    ranks = int(rows["rank"].max()) + 1
    found = [one.numbers for one in find_stragglers(rows, [rank % 2 for rank in range(ranks)], ("a", "b"))]
    for of_ranks in (True, False):
        caused = sum(float(one["loss_percent"] or 0) for one in found if ("rank" in one) == of_ranks)
        assert caused <= 100 - au_percent(rows) + 1e-9


FOLDERS = [str(number) for number in range(8)]
PLAN = make_plan(num_files=800, num_samples_per_file=1, batch_size=4, ranks=2, file_shuffle=True, seed=1)


def read_from(ms_by_folder: list[float], noise: str = "uniform") -> StepRows:
    """Two epochs of two ranks, each sample's time that of its folder times a draw of mean one."""
    random = np.random.default_rng(1)
    rows = np.zeros(2 * PLAN.ranks * PLAN.steps_per_epoch, STEP_DTYPE)
    places = np.indices((2, PLAN.ranks, PLAN.steps_per_epoch)).reshape(3, -1)
    for row, epoch, rank, step in zip(rows, *places, strict=True):
        samples = RankPlan(PLAN, int(rank)).sample_ids(int(epoch) + 1, int(step) + 1)
        draws = random.uniform(0, 2, 4) if noise == "uniform" else np.minimum(random.pareto(1.5, 4) / 2, 25)
        took_ms = (np.array(ms_by_folder)[samples % len(ms_by_folder)] * draws).sum()
        row["epoch"], row["rank"], row["step"], row["block"] = epoch + 1, rank, step + 1, 1
        row["read_ns"], row["samples"], row["sample_hash"] = took_ms * 1e6, 4, hash_samples(samples)
    return rows


@pytest.mark.parametrize("noise", ["uniform", "pareto"])
def test_the_slow_one_is_named_with_what_a_sample_takes(noise: str) -> None:
    (slow,) = find_slow_folders(read_from([5.0] * 5 + [30.0] + [5.0] * 2, noise), PLAN, FOLDERS)
    assert slow.numbers == {
        "folder": "5",
        "ms_per_sample": pytest.approx(30, rel=0.25),
        "others_ms_per_sample": pytest.approx(5, rel=0.35),
    }


@pytest.mark.parametrize("noise", ["uniform", "pareto"])
@pytest.mark.parametrize("ms_by_folder", [[5.0] * 8, [5.0] * 7 + [7.0], [5.0, 20.0] * 4, [5.0] * 5 + [30.0] * 3])
def test_folders_that_are_alike_or_slow_by_halves_are_not_named(ms_by_folder: list[float], noise: str) -> None:
    assert not list(find_slow_folders(read_from(ms_by_folder, noise), PLAN, FOLDERS))


def test_batches_of_another_order_or_too_few_tell_nothing() -> None:
    rows = read_from([5.0] * 7 + [50.0])
    assert list(find_slow_folders(rows, PLAN, FOLDERS))
    assert not list(find_slow_folders(rows, replace(PLAN, seed=2), FOLDERS))
    assert not list(find_slow_folders(rows[:60], PLAN, FOLDERS))
    assert not list(find_slow_folders(rows, PLAN, []))
    assert not list(find_slow_folders(rows[:0], PLAN, FOLDERS))


@given(rows=any_rows(), first=st.integers(0, 3), last=st.integers(0, 3), share=st.floats(0.3, 1))
def test_a_table_has_the_rows_of_an_array_in_order_and_its_blocks_ends_can_be_left_out(
    rows: StepRows, first: int, last: int, share: float
) -> None:
    random = np.random.default_rng(1)
    rows["phase"] = random.integers(0, 2, len(rows))
    some = rows[random.random(len(rows)) < share]
    ordered = some[np.lexsort([some[name] for name in ("step", "block", "phase", "epoch", "rank")])]
    keys = np.stack([ordered[name] for name in ("rank", "epoch", "phase", "block")])
    blocks = np.split(ordered, np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1)
    table = as_table(some)
    assert np.array_equal(np.asarray(table), ordered)
    remaining = np.concatenate([block[first : max(first, len(block) - last)] for block in blocks])
    assert np.array_equal(np.asarray(kept_rows(table, first, last)), remaining)
    places = random.permutation(len(ordered))[::2]
    for name in STEP_DTYPE.names or ():
        assert np.array_equal(table[places][name], ordered[name][places])
