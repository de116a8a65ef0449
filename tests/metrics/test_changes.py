"""When the storage's speed changed: not by chance, and at the right moment when it did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.emulator.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.changes import Supply, changes_of, clock, find_speed_changes, find_stalls
from dlemu.metrics.over_time import Floats

WINDOW, MB = 0.25, 1_000_000


def supply(values: Floats, demand: float = np.inf) -> Supply:
    """A storage that could give `values`, asked for `demand`."""
    return Supply(WINDOW * np.arange(len(values), dtype=np.float64), np.minimum(values, demand), values < demand)


def noises(random: np.random.Generator, count: int) -> dict[str, Floats]:
    jitter = random.normal(1, 0.15, count).clip(0.1)
    throttle = random.multinomial(10 * count, np.full(count, 1 / count)) / 10
    heavy = 1 / (1 + random.pareto(2.5, count))
    waves = 1 + 0.1 * np.sin(np.arange(count) * 2 * np.pi / random.uniform(3, 9)) + random.normal(0, 0.05, count)
    return {"jitter": jitter, "throttle": throttle, "heavy": heavy, "waves": waves}


@pytest.mark.parametrize("kind", ["jitter", "throttle", "heavy", "waves"])
@pytest.mark.parametrize("demand", [np.inf, 105.0, 95.0, 60.0])
def test_a_steady_storage_has_no_change(kind: str, demand: float) -> None:
    wrong = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        values = 100 * noises(random, int(random.integers(20, 400)))[kind]
        wrong += bool(changes_of(supply(values, demand)))
    assert wrong <= 2


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
    assert change.at_seconds == pytest.approx(WINDOW * first, abs=WINDOW)
    assert change.percent == pytest.approx(100 * (factor if faster else 1 / factor), rel=0.2)


def steps_on(mb_per_second: Callable[[float], float], *, demand: float, steps: int = 600, epochs: int = 1) -> StepRows:
    """A rank that reads batches of 1 MB one after another, 8 ahead, from a drive of that speed at each moment."""
    rows, now = np.zeros(epochs * steps, STEP_DTYPE), 10.0
    for epoch in range(epochs):
        free = read = now
        begun: list[float] = []
        for step in range(steps):
            row = rows[epoch * steps + step]
            started = max(read, begun[step - 8] if step >= 8 else now)
            read = started
            while (left := 1.0 - (read - started) * mb_per_second(read - 10.0)) > 1e-9 and read - started < 60:
                read += min(left / mb_per_second(read - 10.0), 0.01)
            begins, compute = max(free, read), 1 / demand
            begun.append(begins)
            row["epoch"], row["block"], row["step"] = epoch + 1, 1, step + 1
            row["free_ns"], row["wait_ns"], row["compute_ns"] = free * 1e9, (begins - free) * 1e9, compute * 1e9
            row["started_ns"], row["finished_ns"], row["read_ns"] = started * 1e9, read * 1e9, (read - started) * 1e9
            row["app_bytes"] = row["storage_bytes"] = MB
            free = begins + compute
        now = free
    return rows


@pytest.mark.parametrize(("before", "after", "percent"), [(200, 50, 50), (50, 200, 200), (80, 40, 50), (40, 80, 200)])
def test_a_drive_that_changes_is_told_by_what_it_gave_when_it_was_waited_for(
    before: float, after: float, percent: float
) -> None:
    """Asked for 100 MB/s: a drive that has more to give than that is not seen to."""
    rows = steps_on(lambda second: before if second < 5 else after, demand=100)
    (change,) = find_speed_changes(rows)
    assert change.at_seconds == pytest.approx(5, abs=1)
    assert change.percent == pytest.approx(percent, rel=0.1)


@pytest.mark.parametrize("demand", [60, 100, 104, 300])
def test_epochs_that_begin_with_a_burst_are_no_changes(demand: float) -> None:
    rows = steps_on(lambda second: 100, demand=demand, steps=300, epochs=4)
    assert find_speed_changes(rows) == ()
    assert find_stalls(rows) == ()


def test_a_drive_that_stands_still_is_told_with_its_time() -> None:
    rows = steps_on(lambda second: 0.01 if 3 <= second < 5 else 150, demand=100)
    (stall,) = find_stalls(rows)
    assert stall.at_seconds == pytest.approx(3, abs=0.1)
    assert stall.seconds == pytest.approx(2, abs=0.1)
    assert find_speed_changes(rows) == ()


@pytest.mark.parametrize("storage_bytes", [0, 10_000])
@pytest.mark.parametrize("cached", [slice(None, 300), slice(300, None), slice(1, None)])
def test_what_the_page_cache_served_is_no_speed_of_the_storage(cached: slice, storage_bytes: int) -> None:
    rows = steps_on(lambda second: 50, demand=100)
    rows["storage_bytes"][cached] = storage_bytes
    assert find_speed_changes(rows) == ()


def test_no_steps_have_neither() -> None:
    assert find_speed_changes(np.zeros(0, STEP_DTYPE)) == ()
    assert find_stalls(np.zeros(0, STEP_DTYPE)) == ()


def test_a_moment_is_written_as_a_clock_shows_it() -> None:
    assert [clock(6.9), clock(725), clock(3661)] == ["00:06", "12:05", "1:01:01"]
