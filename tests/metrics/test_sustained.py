"""The sustained AU is the storage's, however short the epoch and however deep the queues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.sustained import (
    Supply,
    is_supply_known,
    prefetch_credit_percent,
    supplies_of,
    sustained_au,
    uncertainty_of,
)
from dlemu.metrics.t_interval import percent_interval
from dlemu.metrics.verdict import Evidence, judge
from tests.validation.virtual_drives import Training, link, train

C = 100_000_000


def only_supply_of(rows: StepRows) -> Supply:
    (supply,) = supplies_of(rows)
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
    """Headline, sustained AU and credit."""
    kept = kept_rows(rows, 1, 0)
    sustained, credit = sustained_au(rows, kept), prefetch_credit_percent(rows, kept)
    assert sustained.mean is not None
    assert credit is not None
    return au_percent(kept), sustained.mean, credit


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
            epochs=epochs,
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
