"""The uncertainty covers the truth, and shrinks as a run gets longer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import Uncertainty, kept_rows, sustained_au, uncertainty_of
from dlemu.metrics.t_interval import estimate

C = 100_000_000


def jittery(seed: int, *, ratio: float, steps: int, epochs: int, spread: float) -> StepRows:
    """A drive that serves one batch after the other in drawn times, slower than asked for; queues never fill."""
    random = np.random.default_rng(seed)
    rows = np.zeros(epochs * steps, STEP_DTYPE)
    now, row = 0, 0
    for epoch in range(1, epochs + 1):
        free = finished = float(now)
        for step in range(1, steps + 1):
            took = C / ratio * random.gamma(1 / spread**2, spread**2)
            started, finished = finished, finished + took
            begin = max(free, finished)
            own = rows[row]
            own["epoch"], own["block"], own["step"], own["compute_ns"] = epoch, 1, step, C
            own["free_ns"], own["wait_ns"] = round(free), round(begin - free)
            own["started_ns"], own["finished_ns"] = round(started), round(finished)
            free, row = begin + C, row + 1
        now = round(free) + C
    return rows


def result(rows: StepRows) -> tuple[float, Uncertainty]:
    kept = kept_rows(rows, 1, 0)
    sustained, uncertainty = sustained_au(rows, kept).mean, uncertainty_of(rows, kept)
    assert sustained is not None
    assert uncertainty is not None
    return sustained, uncertainty


@pytest.mark.parametrize(
    ("steps", "epochs", "spread", "share"),
    [(60, 3, 0.2, 0.95), (60, 3, 0.5, 0.95), (10, 2, 0.3, 0.92), (25, 1, 0.3, 0.92)],
)
def test_the_truth_lies_within_u_in_about_95_of_100_runs(steps: int, epochs: int, spread: float, share: float) -> None:
    """Even in those of a few seconds; in the longer ones, U is no wider than needed."""
    results = [result(jittery(seed, ratio=0.6, steps=steps, epochs=epochs, spread=spread)) for seed in range(200)]
    covered = sum(abs(au - 60) <= uncertainty.expanded_percent for au, uncertainty in results)
    assert covered >= share * len(results)
    if steps == 60:
        widths = np.array([uncertainty.expanded_percent for _, uncertainty in results])
        assert widths.mean() < 5 * np.std([au for au, _ in results])


def test_a_stall_at_the_end_of_an_epoch_counts() -> None:
    """An epoch of 2.9 s has two windows, which fill it: a stall in its last second was in the AU and not in U."""
    rows = np.zeros(3 * 29, STEP_DTYPE)
    for row, own in enumerate(rows):
        epoch, step = divmod(row, 29)
        late = C // 2 if (epoch, step) == (1, 27) else 0
        own["epoch"], own["block"], own["step"], own["compute_ns"] = epoch + 1, 1, step + 1, C
        own["free_ns"], own["wait_ns"] = row * C + (C if row > 56 else 0), late
        own["started_ns"], own["finished_ns"] = own["free_ns"] - 2 * C, own["free_ns"] - 2 * C + 1
    sustained, uncertainty = result(rows)
    assert sustained < 99.5
    assert uncertainty.expanded_percent > 100 - sustained


def test_u_falls_with_the_root_of_the_time() -> None:
    def mean_u(epochs: int) -> float:
        runs = [jittery(seed, ratio=0.6, steps=100, epochs=epochs, spread=0.4) for seed in range(9)]
        return float(np.mean([result(rows)[1].expanded_percent for rows in runs]))

    short, long = mean_u(2), mean_u(18)
    assert 2 < short / long < 4.5


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_after_five_minutes_u_is_what_the_drive_itself_leaves_open(spread: float) -> None:
    """300 s at 90 %: below a point where batches of 0.1 s spread by a fifth, and never far from the mean's error."""
    steps = 3 * 900
    least = 2 * 90 * spread / np.sqrt(steps)
    widths = [result(jittery(seed, ratio=0.9, steps=steps // 3, epochs=3, spread=spread))[1] for seed in range(3)]
    mean = float(np.mean([width.expanded_percent for width in widths]))
    assert 0.7 * least < mean < 1.3 * least
    assert mean < 1 or spread > 0.2


def test_the_budget_adds_up() -> None:
    _, uncertainty = result(jittery(3, ratio=0.7, steps=50, epochs=2, spread=0.3))
    combined = np.sqrt(sum(percent**2 for percent in uncertainty.budget.values()))
    assert uncertainty.expanded_percent == pytest.approx(2 * combined)


def test_accelerators_that_never_wait_are_certain() -> None:
    rows = jittery(1, ratio=50.0, steps=50, epochs=2, spread=0.3)
    au, uncertainty = result(rows)
    assert au == 100
    assert uncertainty.expanded_percent < 0.01


def test_too_little_says_nothing() -> None:
    rows = jittery(1, ratio=0.6, steps=3, epochs=1, spread=0.3)
    assert uncertainty_of(rows[:1], rows[:0]) is None


S = 1_000_000_000


def even(computed_s: list[float]) -> StepRows:
    """Steps of 10 s each of which so much is computation; nothing was read that is known of."""
    rows = np.zeros(len(computed_s), STEP_DTYPE)
    rows["epoch"], rows["block"], rows["step"] = 1, 1, np.arange(1, len(rows) + 1)
    rows["compute_ns"] = np.array(computed_s) * S
    rows["wait_ns"] = 10 * S - rows["compute_ns"]
    rows["free_ns"] = 10 * S * np.arange(len(rows))
    rows["started_ns"] = rows["finished_ns"] = rows["free_ns"][0]
    return rows


def test_a_budget_by_hand() -> None:
    rows = even([4.0, 6.0] * 4)
    uncertainty = uncertainty_of(rows, rows)
    assert uncertainty is not None
    spread, edge, stamps = uncertainty.budget.values()
    assert [*uncertainty.budget] == [
        "spread between windows of time",
        "batches half read where an epoch's window ends",
        "clock and stamps",
    ]
    # Windows of 2 x 5 s: 40 and 60 % in turn. A t-interval of 95.45 % of eight such values, halved: k is 2.
    assert spread == pytest.approx(estimate(np.array([40.0, 60.0] * 4), 0.9545).half_width_percent / 2)
    assert edge == 0
    assert stamps == pytest.approx(100 * 1000 * 8**0.5 / (80 * S))
    assert uncertainty.expanded_percent == pytest.approx(2 * (spread**2 + stamps**2) ** 0.5)


def test_a_supply_is_uncertain_by_what_was_under_way_at_its_end() -> None:
    rows = even([9.0] * 8)
    # Two workers in turn take 24 s for a batch, one of them begun every 12 s: 75 % of 12 s are 9.
    rows["started_ns"] = 12 * S * np.arange(8)
    rows["finished_ns"] = rows["started_ns"] + 24 * S
    uncertainty = uncertainty_of(rows, rows)
    assert uncertainty is not None
    # When the last batch is begun one is being read; what was read is judged in the 80 s of training.
    _, edge, stamps = uncertainty.budget.values()
    assert edge == pytest.approx(100 * 9 / 12**0.5 / 80)
    assert stamps == pytest.approx(100 * 1000 * 8**0.5 / (80 * S))


@pytest.mark.parametrize(("epochs", "is_known"), [(2, False), (3, True)])
def test_epochs_too_short_for_windows_are_the_values_themselves(epochs: int, is_known: bool) -> None:
    parts = []
    for epoch in range(epochs):
        part = even([4.0 + epoch])
        part["epoch"], part["compute_ns"] = epoch + 1, (4 + epoch) * S
        part["wait_ns"] = 10 * S - part["compute_ns"]
        parts.append(part)
    rows = np.concatenate(parts)
    uncertainty = uncertainty_of(rows, rows)
    assert (uncertainty is not None) == is_known
    if uncertainty is not None:
        widths = estimate(np.array([40.0, 50.0, 60.0]), 0.9545).half_width_percent
        assert uncertainty.budget["spread between windows of time"] == pytest.approx(widths / 2)


def paused(rows: StepRows, pauses_s: list[float]) -> StepRows:
    """The same steps in one block more for each pause; whatever happens after a pause begins is later by it.

    Nothing is read in a pause: the batch that is under way when one begins is over then.
    """
    rows = rows.copy()
    stamps = ("free_ns", "started_ns", "finished_ns")
    for epoch in np.unique(rows["epoch"]):
        own = np.flatnonzero(rows["epoch"] == epoch)
        parts = np.array_split(own, len(pauses_s) + 1)
        for block, places in enumerate(parts):
            rows["block"][places] = block + 1
        for places, pause_s in reversed(list(zip(parts[1:], pauses_s, strict=True))):
            begin = int(rows["free_ns"][places[0]])
            under_way = own[(rows["started_ns"][own] < begin) & (rows["finished_ns"][own] > begin)]
            rows["finished_ns"][under_way] = begin
            for name in stamps:
                after = rows[name][own] > begin if name == "finished_ns" else rows[name][own] >= begin
                rows[name][own[after]] += round(pause_s * S)
    return rows


@given(
    pauses_s=st.lists(st.floats(0, 1000), min_size=1, max_size=4),
    ratio=st.sampled_from([0.6, 0.95, 1.1, 3.0]),
    seed=st.integers(0, 50),
)
def test_pauses_between_blocks_are_no_time_in_which_anything_was_expected(
    pauses_s: list[float], ratio: float, seed: int
) -> None:
    rows = jittery(seed, ratio=ratio, steps=60, epochs=2, spread=0.3)
    without, apart = paused(rows, [0.0] * len(pauses_s)), paused(rows, pauses_s)
    (au, plain), (au_apart, split) = result(without), result(apart)
    assert au_apart == pytest.approx(au)
    assert split.expanded_percent == pytest.approx(plain.expanded_percent, rel=1e-6, abs=1e-6)
