"""The sustained AU is the storage's, however short the epoch and deep the queues; its uncertainty covers the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import (
    Supply,
    Uncertainty,
    au_percent,
    is_supply_known,
    kept_rows,
    prefetch_credit_percent,
    supplies_of,
    sustained_au,
    uncertainty_of,
)
from dlemu.metrics.rows import as_table
from dlemu.metrics.t_interval import estimate, percent_interval
from dlemu.metrics.verdict import Evidence, judge
from tests.runs import present
from tests.validation.virtual_drives import Drive, Training, link, train

C = 100_000_000


def only_supply_of(rows: StepRows) -> Supply:
    (supply,) = supplies_of(as_table(rows))
    return supply


def simulate(*, steps: int, ratio: float, ahead: int, workers: int = 1, epochs: int = 1, ranks: int = 1) -> StepRows:
    """Epochs on a drive that gives `ratio` of what the accelerators ask for, to all workers in turn."""
    drive = link(lambda _: 10 * ratio * ranks, spread=0.0)
    asked = Training(
        ranks=ranks, workers=workers, ahead=ahead, steps=steps, epochs=epochs, step_seconds=0.1, batch_bytes=1e6,
        requests=32,
    )  # fmt: skip
    return train(drive, asked)


def figures(rows: StepRows) -> tuple[float, float, float]:
    kept = kept_rows(rows, 1, 0)
    return au_percent(kept), present(sustained_au(rows, kept).mean), present(prefetch_credit_percent(rows, kept))


@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.885])
@pytest.mark.parametrize(("steps", "workers", "ahead"), [(25, 4, 2), (12, 4, 1), (100, 8, 2), (30, 1, 2)])
def test_a_short_epoch_says_what_the_drive_sustains(ratio: float, steps: int, workers: int, ahead: int) -> None:
    headline, sustained, credit = figures(simulate(steps=steps, ratio=ratio, workers=workers, ahead=ahead, epochs=3))
    assert sustained == pytest.approx(100 * ratio, abs=1.5)
    assert sustained <= headline
    if workers > 1:
        assert credit > 100 * (workers - 1) / (2 * steps)
        assert headline > 100 * ratio + 1, "the headline counts what was read outside its steps"


@pytest.mark.parametrize("ratio", [1.05, 2.0, 20.0])
def test_a_drive_that_gives_more_than_is_asked_for_sustains_everything(ratio: float) -> None:
    headline, sustained, _ = figures(simulate(steps=40, ratio=ratio, workers=4, ahead=2, epochs=2))
    assert headline == sustained == 100


def test_clocks_of_hosts_need_not_agree() -> None:
    alike = simulate(steps=25, ratio=0.8, workers=4, ahead=2, ranks=3)
    apart = alike.copy()
    for name in ("free_ns", "started_ns", "finished_ns"):
        apart[name] += 10**15 * apart["rank"]
    assert figures(alike) == figures(apart)


def test_what_holds_the_accelerators_back_besides_the_supply_counts() -> None:
    rows = simulate(steps=40, ratio=5.0, workers=4, ahead=2)
    rows["sync_ns"] = C // 3
    rows["free_ns"] += np.arange(len(rows)) * (C // 3)
    headline, sustained, _ = figures(rows)
    assert sustained == pytest.approx(headline)
    assert headline == pytest.approx(75)


@given(
    steps=st.integers(2, 40),
    ratio=st.floats(0.1, 0.87) | st.floats(0.87, 3.0),
    workers=st.integers(1, 6),
    ahead=st.integers(1, 4),
    epochs=st.integers(1, 3),
    ranks=st.integers(1, 2),
)
def test_it_is_no_more_than_the_headline_and_no_run_passes_on_a_drive_that_does_not_sustain_it(
    steps: int, ratio: float, workers: int, ahead: int, epochs: int, ranks: int
) -> None:
    """However short its epochs: a part of them is left open, none is called a pass."""
    rows = simulate(steps=steps, ratio=ratio, workers=workers, ahead=ahead, epochs=epochs, ranks=ranks)
    headline, sustained, credit = figures(rows)
    assert sustained <= headline + 1e-9
    assert 0 <= credit <= 100
    uncertainty = uncertainty_of(rows, kept_rows(rows, 1, 0))
    verdict = judge(
        Evidence(
            complete=True,
            threshold_percent=90.0,
            by="sustained",
            au=headline,
            au_sustained=sustained,
            au_whole=au_percent(rows),
            uncertainty_percent=uncertainty.expanded_percent if uncertainty else None,
            length=("train.epochs", epochs),
            ceiling_au=100.0,
            from_storage_percent=100.0,
            cached=False,
            kept_steps=steps - 1,
            prefetched_steps=workers * ahead + 1,
            supply_known=is_supply_known(rows),
        )
    )
    assert ratio > 0.87 or verdict.passed is not True
    if uncertainty is not None:
        low, high = percent_interval(sustained, uncertainty.expanded_percent)
        assert 0 <= low <= sustained <= high <= 100


def test_of_an_epoch_read_at_once_the_least_is_known() -> None:
    """Four batches of 4 s of computation, all begun at once, all there after 20 s: 16 of 20 s, and perhaps more."""
    rows = by_hand()
    rows["block"], rows["step"] = 1, [1, 2, 3, 4]
    rows["started_ns"], rows["finished_ns"] = 0, np.array([20, 20, 20, 20]) * S
    rows["free_ns"], rows["wait_ns"] = np.array([0, 24, 28, 32]) * S, np.array([20, 0, 0, 0]) * S
    assert only_supply_of(rows) == Supply(read_ns=16 * S, time_ns=20 * S, edge_ns=0, is_lower_bound=True)
    assert not is_supply_known(rows)
    kept = kept_rows(rows, 1, 0)
    assert au_percent(kept) == 100
    assert sustained_au(rows, kept).mean == pytest.approx(80)
    known = by_hand()
    rows["epoch"] = 2
    both = np.concatenate([known, rows])
    assert is_supply_known(known)
    assert is_supply_known(both), "the first epoch is measured"
    assert sustained_au(both, known).mean == pytest.approx(present(sustained_au(known, known).mean))


S = 1_000_000_000


def by_hand(*, rank: int = 0, clock_s: int = 0, pause_s: int = 0) -> StepRows:
    """Batches of 4 s of computation, read in 5 s each, one after the other; a checkpoint after the second."""
    rows = np.zeros(4, STEP_DTYPE)
    rows["rank"], rows["epoch"], rows["block"], rows["step"] = rank, 1, [1, 1, 2, 2], [1, 2, 3, 4]
    rows["free_ns"], rows["wait_ns"] = np.array([0, 9, 14, 19]) * S, np.array([5, 1, 1, 1]) * S
    rows["free_ns"][2:] += pause_s * S
    rows["compute_ns"] = 4 * S
    rows["started_ns"], rows["finished_ns"] = np.array([0, 5, 10, 15]) * S, np.array([5, 10, 15, 20]) * S
    rows["started_ns"][2:] += pause_s * S
    rows["finished_ns"][2:] += pause_s * S
    for name in ("free_ns", "started_ns", "finished_ns"):
        rows[name] += clock_s * S
    return rows


def test_a_supply_by_hand() -> None:
    # Up to the begin of the last batch, at 15 s, three were read.
    assert only_supply_of(by_hand()) == Supply(read_ns=12 * S, time_ns=15 * S, edge_ns=0)
    assert only_supply_of(by_hand()).percent == 80
    assert only_supply_of(by_hand(clock_s=1000)) == only_supply_of(by_hand())
    # The checkpoint, from 14 to 44 s, is left out, and so is the second that the reader worked in it: none here.
    assert only_supply_of(by_hand(pause_s=30)).time_ns == 14 * S + 1 * S
    nothing = by_hand()[:0]
    assert supplies_of(as_table(nothing)) == []
    assert np.isnan(Supply(read_ns=0, time_ns=0).percent)
    assert sustained_au(nothing, nothing).mean is prefetch_credit_percent(nothing, nothing) is None
    assert uncertainty_of(by_hand()[:1], nothing) is None


def test_readers_that_a_checkpoint_left_idle_say_nothing_of_the_supply_before_one_has_read() -> None:
    """Two readers take 6 s for a batch of 4 s; both batches of the queue are read in a checkpoint, from 14 to 44 s."""
    rows = np.zeros(7, STEP_DTYPE)
    rows["epoch"], rows["block"], rows["step"] = 1, [1, 1, 2, 2, 2, 2, 2], np.arange(1, 8)
    rows["free_ns"], rows["compute_ns"] = np.array([0, 10, 44, 48, 52, 56, 60]) * S, 4 * S
    rows["wait_ns"][0], rows["started_ns"] = 6 * S, np.array([0, 0, 6, 10, 44, 48, 52]) * S
    rows["finished_ns"] = rows["started_ns"] + 6 * S
    # Three batches and 4 of 6 s of the fourth up to 14 s; then 2 of 6 s of the sixth, from 50 s until 52 s.
    assert only_supply_of(rows).read_ns == pytest.approx(16 * S) == only_supply_of(rows).time_ns


def test_the_supply_of_ranks_ends_when_the_first_of_them_reads_its_last_batch() -> None:
    early = by_hand(rank=2, clock_s=500)
    early["started_ns"][3] -= 2 * S  # its last batch is begun at 13 s, while both still read their third
    both = only_supply_of(np.concatenate([by_hand(), early]))
    # Each: two batches and 3 of 5 s of the third in 13 s.
    assert both.time_ns == 26 * S
    assert both.read_ns == pytest.approx(2 * (8 + 4 * 3 / 5) * S)
    # Half read, all or nothing: a share that is anything from 0 to 1 of 4 s on each.
    assert both.edge_ns == pytest.approx((2 * 4**2 / 12) ** 0.5 * S)


def test_epochs_add_up_and_the_headline_is_the_most_that_is_said() -> None:
    first, second = by_hand(), by_hand(clock_s=100)
    second["epoch"], second["finished_ns"] = 2, second["finished_ns"] - 2 * S  # read in 3 s each
    rows = np.concatenate([first, second])
    sustained = sustained_au(rows, kept_rows(rows, 1, 0))
    # Epoch 1: 80 % and 2 x (4 of 5 s) without the first step of each block; epoch 2: 12 of 15 s are read, too.
    assert sustained.per_epoch == pytest.approx((80, 80))
    assert sustained.mean == pytest.approx(80)
    starved = first.copy()
    starved["sync_ns"] = 11 * S
    assert sustained_au(starved, starved).mean == pytest.approx(100 * 16 / (8 + 16 + 44))


def test_a_credit_by_hand() -> None:
    rows = by_hand()
    kept = kept_rows(rows, 1, 0)
    # Of blocks of two steps the second ones are kept: at 9 s 4 of 5 s of the first, at 19 s 4 of 5 s of the other.
    assert prefetch_credit_percent(rows, kept) == pytest.approx(80)
    assert prefetch_credit_percent(rows, rows) == pytest.approx(100 * (4 / 5) / 4), "0, 0, at 14 s 4 of 5 s, 0"


# the uncertainty


def jittery(seed: int, *, ratio: float, steps: int, epochs: int, spread: float) -> StepRows:
    """A drive that serves one batch after the other in drawn times, slower than asked for; queues never fill."""
    drive = Drive(channels=1, serve=lambda _, random: float(0.1 / ratio * random.gamma(1 / spread**2, spread**2)))
    asked = Training(workers=1, ahead=steps, steps=steps, epochs=epochs, step_seconds=0.1, batch_bytes=1e6)
    return train(drive, asked, seed)


def result(rows: StepRows) -> tuple[float, Uncertainty]:
    kept = kept_rows(rows, 1, 0)
    return present(sustained_au(rows, kept).mean), present(uncertainty_of(rows, kept))


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
    sustained, uncertainty = result(jittery(1, ratio=50.0, steps=50, epochs=2, spread=0.3))
    assert sustained == 100, "these accelerators never wait"
    assert uncertainty.expanded_percent < 0.01


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_after_five_minutes_u_is_what_the_drive_itself_leaves_open(spread: float) -> None:
    """300 s at 90 %: below a point where batches of 0.1 s spread by a fifth, and never far from the mean's error."""
    steps = 3 * 900
    least = 2 * 90 * spread / np.sqrt(steps)
    widths = [result(jittery(seed, ratio=0.9, steps=steps // 3, epochs=3, spread=spread))[1] for seed in range(3)]
    mean = float(np.mean([width.expanded_percent for width in widths]))
    assert 0.7 * least < mean < 1.3 * least
    assert mean < 1 or spread > 0.2


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
    uncertainty = present(uncertainty_of(rows, rows))
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
    uncertainty = present(uncertainty_of(rows, rows))
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
