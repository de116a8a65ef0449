"""The sustained AU is the storage's, however short the epoch and however deep the queues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import (
    Supply,
    au_percent,
    is_supply_known,
    kept_rows,
    prefetch_credit_percent,
    supplies_of,
    sustained_au,
    uncertainty_of,
)
from dlemu.metrics.t_interval import percent_interval
from dlemu.metrics.verdict import Evidence, judge

C = 100_000_000


def only_supply_of(rows: StepRows) -> Supply:
    (supply,) = supplies_of(rows)
    return supply


def simulate(
    *, steps: int, ratio: float, ahead: int, workers: int = 1, epochs: int = 1, ranks: int = 1, skew_ns: int = 0
) -> StepRows:
    """Epochs on a drive that gives `ratio` of what one accelerator asks for; ranks do the same at the same moments.

    Worker w makes batches w, w + workers, ... one at a time, no more than `ahead` beyond what the trainer took; the
    drive serves those under way at once, each at its share of the rate.
    """
    rows = np.zeros(epochs * steps * ranks, STEP_DTYPE)
    now, row = 1_000 * C, 0
    for epoch in range(1, epochs + 1):
        started, finished, begins = share_drive(steps, C / ratio, workers, ahead)
        free = 0.0
        for step in range(steps):
            for rank in range(ranks):
                for name, value in (("free_ns", free), ("started_ns", started[step]), ("finished_ns", finished[step])):
                    rows[row][name] = now + round(value) + rank * skew_ns
                rows[row]["rank"], rows[row]["epoch"], rows[row]["block"], rows[row]["step"] = rank, epoch, 1, step + 1
                rows[row]["wait_ns"], rows[row]["compute_ns"] = round(begins[step] - free), C
                row += 1
            free = begins[step] + C
        now += round(free) + 7 * C
    return rows


def share_drive(steps: int, alone: float, workers: int, ahead: int) -> tuple[list[float], list[float], list[float]]:
    """When each batch was begun, finished and taken; `alone` is how long the drive takes for one with no other."""
    started, finished, begins = [0.0] * steps, [float("inf")] * steps, [float("inf")] * steps
    left: dict[int, float] = {}
    following, now = list(range(workers)), 0.0  # each worker's next batch

    def room(batch: int) -> float:
        return begins[batch - ahead] if batch >= ahead else 0.0

    while min(following) < steps or left:
        for batch in following:
            if batch < steps and batch not in left and room(batch) <= now:
                started[batch], left[batch] = now, alone
        waiting = [room(batch) for batch in following if batch < steps and batch not in left]
        done = now + min(left.values()) * len(left) if left else float("inf")
        moment = min([done, *(time for time in waiting if time > now)])
        for batch in left:
            left[batch] -= (moment - now) / len(left)
        now = moment
        for batch in [batch for batch, work in left.items() if work <= 1]:
            finished[batch] = now
            following[batch % workers] += workers
            del left[batch]
        for step in range(steps):
            free = begins[step - 1] + C if step else 0.0
            begins[step] = max(free, finished[step])
    return started, finished, begins


def figures(rows: StepRows) -> tuple[float, float, float]:
    """Headline, sustained AU and credit."""
    kept = kept_rows(rows, 1, 0)
    sustained, credit = sustained_au(rows, kept), prefetch_credit_percent(rows, kept)
    assert sustained.mean is not None
    assert credit is not None
    return au_percent(kept), sustained.mean, credit


@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.885])
@pytest.mark.parametrize(("steps", "workers", "ahead"), [(25, 4, 8), (12, 4, 4), (100, 8, 16), (30, 1, 2)])
def test_a_short_epoch_says_what_the_drive_sustains(ratio: float, steps: int, workers: int, ahead: int) -> None:
    headline, sustained, credit = figures(simulate(steps=steps, ratio=ratio, workers=workers, ahead=ahead, epochs=3))
    assert sustained == pytest.approx(100 * ratio, abs=1.5)
    assert sustained <= headline
    if workers > 1:
        assert credit > 100 * (workers - 1) / (2 * steps)
        assert headline > 100 * ratio + 1, "the headline counts what was read outside its steps"


@pytest.mark.parametrize("ratio", [1.05, 2.0, 20.0])
def test_a_drive_that_gives_more_than_is_asked_for_sustains_everything(ratio: float) -> None:
    headline, sustained, _ = figures(simulate(steps=40, ratio=ratio, workers=4, ahead=8, epochs=2))
    assert headline == sustained == 100


def test_clocks_of_hosts_need_not_agree() -> None:
    settings = {"steps": 25, "ratio": 0.8, "workers": 4, "ahead": 8, "ranks": 3}
    alike, apart = simulate(**settings), simulate(**settings, skew_ns=10**15)  # type: ignore[arg-type]  # by name
    assert figures(alike) == figures(apart)


def test_what_holds_the_accelerators_back_besides_the_supply_counts() -> None:
    rows = simulate(steps=40, ratio=5.0, workers=4, ahead=8)
    rows["sync_ns"] = C // 3
    rows["free_ns"] += np.arange(len(rows)) * (C // 3)
    headline, sustained, _ = figures(rows)
    assert sustained == pytest.approx(headline)
    assert headline == pytest.approx(75)


@given(
    steps=st.integers(3, 60),
    ratio=st.floats(0.2, 3.0),
    workers=st.integers(1, 6),
    ahead=st.integers(1, 12),
    epochs=st.integers(1, 3),
)
def test_it_never_says_more_than_the_headline_or_the_drive(
    steps: int, ratio: float, workers: int, ahead: int, epochs: int
) -> None:
    headline, sustained, credit = figures(
        simulate(steps=steps, ratio=ratio, workers=workers, ahead=max(ahead, workers), epochs=epochs)
    )
    assert sustained <= headline + 1e-9
    assert 0 <= credit <= 100


@given(
    steps=st.integers(2, 40),
    ratio=st.floats(0.1, 0.87),
    workers=st.integers(1, 6),
    ahead=st.integers(1, 12),
    epochs=st.integers(1, 3),
    ranks=st.integers(1, 2),
)
def test_no_run_passes_on_a_drive_that_does_not_sustain_it(
    steps: int, ratio: float, workers: int, ahead: int, epochs: int, ranks: int
) -> None:
    """However short its epochs: a part of them is left open, none is called a pass."""
    ahead = max(ahead, workers)
    rows = simulate(steps=steps, ratio=ratio, workers=workers, ahead=ahead, epochs=epochs, ranks=ranks)
    kept, uncertainty = kept_rows(rows, 1, 0), uncertainty_of(rows, kept_rows(rows, 1, 0))
    sustained = sustained_au(rows, kept).mean
    assert sustained is not None
    verdict = judge(
        Evidence(
            complete=True,
            threshold_percent=90.0,
            by="sustained",
            au=au_percent(kept),
            au_sustained=sustained,
            au_whole=au_percent(rows),
            uncertainty_percent=uncertainty.expanded_percent if uncertainty else None,
            epochs=epochs,
            ceiling_au=100.0,
            from_storage_percent=100.0,
            cached=False,
            kept_steps=steps - 1,
            prefetched_steps=ahead + 1,
            supply_known=is_supply_known(rows),
        )
    )
    assert verdict.passed is not True
    if uncertainty is not None:
        low, high = percent_interval(sustained, uncertainty.expanded_percent)
        assert 0 <= low <= sustained <= high <= 100


def test_of_an_epoch_read_at_once_the_least_is_known() -> None:
    """Four batches of 4 s of computation, all begun at once, all there after 20 s: 16 of 20 s, and perhaps more."""
    rows = by_hand()
    rows["block"], rows["step"] = 1, [1, 2, 3, 4]
    rows["started_ns"], rows["finished_ns"] = 0, np.array([20, 20, 20, 20]) * S
    rows["free_ns"], rows["wait_ns"] = np.array([0, 24, 28, 32]) * S, np.array([20, 0, 0, 0]) * S
    assert only_supply_of(rows) == Supply(read_ns=16 * S, time_ns=20 * S, edge_ns=0, at_least=True)
    assert not is_supply_known(rows)
    kept = kept_rows(rows, 1, 0)
    assert au_percent(kept) == 100
    assert sustained_au(rows, kept).mean == pytest.approx(80)
    assert is_supply_known(by_hand())


def test_without_steps_there_is_none() -> None:
    nothing = np.zeros(0, STEP_DTYPE)
    assert sustained_au(nothing, nothing).mean is None
    assert prefetch_credit_percent(nothing, nothing) is None


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
    assert supplies_of(by_hand()[:0]) == []
    assert np.isnan(Supply(read_ns=0, time_ns=0).percent)


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
