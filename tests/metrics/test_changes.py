"""When the storage's speed changed: not by chance, and at the right moment when it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.changes import (
    SpeedChange,
    Throughput,
    changes_of,
    find_ran_out,
    find_read_change,
    find_speed_changes,
    find_stalls,
    find_unsteadiness,
    not_steady,
)
from dlemu.metrics.rates import Floats
from dlemu.metrics.rows import as_table
from tests.validation.virtual_drives import Drive, Request, Training, link, train

WINDOW, MB = 0.25, 1_000_000


def supply(values: Floats, demand: float = np.inf) -> Throughput:
    """A storage that could give `values`, asked for `demand`."""
    return Throughput(WINDOW * np.arange(len(values), dtype=np.float64), np.minimum(values, demand), values < demand)


def noises(random: np.random.Generator, count: int) -> dict[str, Floats]:
    jitter = random.normal(1, 0.15, count).clip(0.1)
    throttle = random.multinomial(10 * count, np.full(count, 1 / count)) / 10
    heavy = 1 / (1 + random.pareto(2.5, count))
    waves = 1 + 0.1 * np.sin(np.arange(count) * 2 * np.pi / random.uniform(3, 9)) + random.normal(0, 0.05, count)
    return {"jitter": jitter, "throttle": throttle, "heavy": heavy, "waves": waves}


@pytest.mark.parametrize("kind", ["jitter", "throttle", "heavy", "waves"])
@pytest.mark.parametrize("demand", [np.inf, 95.0])
def test_a_steady_storage_has_no_change(kind: str, demand: float) -> None:
    wrong = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        values = 100 * noises(random, int(random.integers(20, 400)))[kind]
        wrong += bool(changes_of(supply(values, demand)))
    assert wrong <= 1


@given(
    seed=st.integers(0, 2**32),
    factor=st.floats(1.5, 6),
    faster=st.booleans(),
    first=st.integers(20, 150),
    second=st.integers(20, 150),
    kind=st.sampled_from(["jitter", "throttle", "waves"]),
)
def test_a_change_is_found_with_its_moment(
    seed: int, factor: float, faster: bool, first: int, second: int, kind: str
) -> None:
    random = np.random.default_rng(seed)
    noise = 1 + 0.4 * (noises(random, first + second)[kind] - 1)
    values = 100 * noise * np.where(np.arange(first + second) < first, 1, factor if faster else 1 / factor)
    (change,) = changes_of(supply(values))
    # Some windows beside the change may look like those on its other side, more of them the smaller it is.
    assert change.at_seconds == pytest.approx(WINDOW * first, abs=(4 if factor >= 2 else 12) * WINDOW)
    assert change.percent == pytest.approx(100 * (factor if faster else 1 / factor), rel=0.2)


def steps_on(mb_per_second: Callable[[float], float], *, demand: float, steps: int = 600, epochs: int = 1) -> StepRows:
    """A rank that reads batches of 1 MB one after another, 8 ahead, from a drive of that speed at each moment."""
    return steps_of(link(lambda request: mb_per_second(request.at_seconds), spread=0.0), demand, steps, epochs)


def steps_of(drive: Drive, demand: float, steps: int = 600, epochs: int = 1) -> StepRows:
    return train(
        drive, Training(workers=1, ahead=8, steps=steps, epochs=epochs, step_seconds=1 / demand, batch_bytes=MB)
    )


@pytest.mark.parametrize(("before", "after", "percent"), [(200, 50, 50), (50, 200, 200), (80, 40, 50), (40, 80, 200)])
def test_a_drive_that_changes_is_told_by_what_it_gave_when_it_was_waited_for(
    before: float, after: float, percent: float
) -> None:
    """Asked for 100 MB/s: a drive that has more to give than that is not seen to."""
    rows = steps_on(lambda second: before if second < 5 else after, demand=100)
    gave = {"mb_per_second_before": min(before, 100), "mb_per_second_after": min(after, 100), "percent": percent}
    near: dict[str, Any] = {name: pytest.approx(value, rel=0.1) for name, value in gave.items()}
    near |= {"at_seconds": pytest.approx(5, abs=1), "gb_before": pytest.approx(min(before, 100) / 200, rel=0.2)}
    found, *also = find_unsteadiness(rows, preprocesses=False)
    assert [other.numbers["pattern"] for other in also] == ["ran_out"] * (after < before)
    assert found == not_steady("speed_changed", **near)


@pytest.mark.parametrize("demand", [60, 100, 104, 300])
def test_epochs_that_begin_with_a_burst_are_no_changes(demand: float) -> None:
    rows = steps_on(lambda second: 100, demand=demand, steps=300, epochs=4)
    assert find_speed_changes(rows) == ()
    assert find_stalls(as_table(rows)) == ()


def test_reads_that_became_faster_cost_nothing_where_only_a_stall_made_accelerators_wait() -> None:
    """While the queue is filled, a throttled drive is slower to read than later, when it could give more."""

    def serve(request: Request, _: object) -> float:
        return 1 / (120 if request.at_seconds < 0.6 else 400) + (5 - request.at_seconds) * (3 <= request.at_seconds < 5)

    rows = steps_of(Drive(channels=1, serve=serve), demand=100)
    assert [round(stall.seconds) for stall in find_stalls(as_table(rows))] == [2]
    assert find_read_change(as_table(rows), preprocesses=False) is not None
    assert find_speed_changes(rows) == ()


@pytest.mark.parametrize("storage_bytes", [0, 10_000])
@pytest.mark.parametrize("cached", [slice(None, 300), slice(300, None), slice(1, None)])
def test_what_the_page_cache_served_is_no_speed_of_the_storage(cached: slice, storage_bytes: int) -> None:
    rows = steps_on(lambda second: 50, demand=100)
    rows["storage_bytes"][cached] = storage_bytes
    assert find_speed_changes(rows) == ()


@pytest.mark.parametrize("share", [0.3, 0.5, 1.7])
def test_a_file_system_that_compresses_does_not_hide_a_change(share: float) -> None:
    """It reads fewer bytes than it gives: all of its windows tell of the storage."""
    rows = steps_on(lambda second: 80 if second < 5 else 40, demand=100)
    rows["storage_bytes"] = share * rows["app_bytes"]
    (change,) = find_speed_changes(rows)
    assert change.at_seconds == pytest.approx(5, abs=1)
    assert change.percent == pytest.approx(50, rel=0.1)
    assert change.gb_before == pytest.approx(share * 0.4, rel=0.2)
    rows["storage_bytes"][100:220] = 0.02 * MB * share
    (change,) = find_speed_changes(rows)
    assert change.percent == pytest.approx(50, rel=0.1)


def credit(gigabytes: float, *, fast: float, slow: float, pause_at: tuple[float, ...] = ()) -> Callable[[float], float]:
    """Return a drive that is fast for so many bytes, and again after each pause."""
    seconds = gigabytes * 1e3 / fast
    starts = (0.0, *pause_at)
    return lambda second: fast if any(start <= second < start + seconds for start in starts) else slow


def test_a_credit_that_runs_out_again_and_again_is_told_by_its_bytes() -> None:
    rows = steps_on(credit(0.4, fast=100, slow=40, pause_at=(14.0, 28.0)), demand=150, steps=2400)
    (out,) = find_ran_out(find_speed_changes(rows))
    assert out.numbers == {
        "pattern": "ran_out",
        "times": 3,
        "gb": pytest.approx(0.4, rel=0.1),
        "mb_per_second_before": pytest.approx(100, rel=0.1),
        "mb_per_second_after": pytest.approx(40, rel=0.1),
    }


@pytest.mark.parametrize(
    "speed",
    [
        lambda second: 40 if second < 4 else 100,
        lambda second: 100 if second < 4 or second >= 9 else 40,
        lambda second: 40 if 3 <= second < 6 or second >= 14 else 100,
        lambda second: 100,
    ],
    ids=["faster", "for a while", "at odd bytes", "steady"],
)
def test_a_storage_that_is_slow_for_another_reason_did_not_run_out(speed: Callable[[float], float]) -> None:
    assert not list(find_ran_out(find_speed_changes(steps_on(speed, demand=150, steps=1800))))


@pytest.mark.parametrize("percents", [(200, 40, 40), (40, 40, 200)], ids=["rises first", "falls on"])
def test_what_falls_must_have_been_fast_just_before(percents: tuple[float, ...]) -> None:
    changes = [
        SpeedChange(at_seconds=at, gb_before=at, percent=percent, mb_per_second_before=100, mb_per_second_after=percent)
        for at, percent in enumerate(percents, 1)
    ]
    assert not list(find_ran_out(changes))


# by hand


def levels(*parts: tuple[int, float], limits: bool = True) -> Throughput:
    """So many windows of each speed, with a little noise that has no trend."""
    values = np.concatenate([speed + 0.01 * speed * (-1.0) ** np.arange(count) for count, speed in parts])
    return Throughput(WINDOW * np.arange(len(values), dtype=np.float64), values, np.full(len(values), limits))


def test_a_difference_that_is_small_or_short_is_none() -> None:
    assert changes_of(levels((30, 100.0), (30, 81.0))) == ()
    (change,) = changes_of(levels((30, 100.0), (30, 79.0)))
    assert change.percent == pytest.approx(79)
    assert changes_of(levels((30, 100.0), (4, 10.0), (30, 100.0))) == ()
    assert changes_of(levels((5, 100.0), (6, 10.0))) == ()
    assert changes_of(levels((30, 100.0), (30, 10.0), limits=False)) == (), "nobody waited: it gave what was asked for"
    assert changes_of(Throughput(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))) == ()


def reads(speeds_mb_per_second: list[float], *, seconds: float = 0.5, late_s: float = 0.0) -> StepRows:
    """Batches of one reader that follow one another, each so long at its speed; the accelerator waits for all."""
    rows = np.zeros(len(speeds_mb_per_second), STEP_DTYPE)
    rows["epoch"], rows["block"], rows["step"] = 1, 1, np.arange(1, len(rows) + 1)
    length = round(seconds * 1e9)
    rows["started_ns"] = 10**12 + length * np.arange(len(rows))
    rows["finished_ns"] = rows["started_ns"] + length
    rows["free_ns"], rows["wait_ns"] = rows["started_ns"], length
    rows["read_ns"] = length
    rows["app_bytes"] = np.array(speeds_mb_per_second) * seconds * MB
    return rows


def test_a_stall_by_hand() -> None:
    rows = reads([100.0] * 20)
    rows["finished_ns"][10:] += 3 * 10**9
    rows["started_ns"][11:] += 3 * 10**9
    rows["free_ns"][11:] += 3 * 10**9
    rows["wait_ns"][10] += 3 * 10**9
    rows["read_ns"][10] += 3 * 10**9
    (stall,) = find_stalls(as_table(rows))
    assert (stall.at_seconds, stall.seconds) == pytest.approx((5.0, 3.5))
    unread = rows.copy()
    unread["read_ns"][10] = 10**9
    assert find_stalls(as_table(unread)) == (), "who reads nothing shows nothing of the storage"
    unwanted = rows.copy()
    unwanted["wait_ns"] = 0
    assert find_stalls(as_table(unwanted)) == ()
    assert find_stalls(as_table(reads([100.0] * 20))) == find_stalls(as_table(rows[:0])) == ()
