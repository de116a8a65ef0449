"""The model keeps to what arithmetic says where arithmetic can say it, and never breaks the rules of a loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.jobs.training.prediction.calibration import CurvePoint, flat, rates
from dlemu.jobs.training.prediction.event_model import HostCosts, Scene, simulate

FREE = HostCosts(hand_over_seconds=0.0, epoch_start_seconds=0.0, step_seconds=0.0)
MB = 1e6


def scene(ranks: int = 2, steps: int = 100, **changes: Any) -> Scene:
    shape = (ranks, steps)
    settings: dict[str, Any] = {
        "work_bytes": np.full(shape, MB),
        "after_seconds": np.zeros(shape),
        "compute_seconds": np.full(shape, 0.02),
        "rate": rates(flat(100.0), 64),
        "workers": 2,
        "window": 4,
        "in_turn": True,
        "synchronous": False,
        "cores": 4.0,
        "costs": FREE,
    }
    return Scene(**(settings | changes))


def au(scene: Scene) -> float:
    times = simulate(scene)
    return float(scene.compute_seconds.mean(axis=0).sum() / times.free[-1])


TAKES_5_MS = HostCosts(hand_over_seconds=0.0, take_seconds=0.005, epoch_start_seconds=0.0, step_seconds=0.0)
FAR = rates((CurvePoint(readers=1, mb_per_second=50.0), CurvePoint(readers=64, mb_per_second=3200.0)), 64)
FAST = rates(flat(1e6), 64)


def each(seconds: float, ranks: int = 2) -> Any:
    return np.full((ranks, 400), seconds)


@pytest.mark.parametrize(
    ("ranks", "changes", "wanted"),
    [
        # 100 MB/s feed two accelerators of 50 MB/s; first steps are the difference to 1
        *[(ranks, {}, share) for ranks, share in ((1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25))],
        # 20 ms a read whoever reads beside: two readers make 100 batches/s, the accelerator takes 200
        (1, {"rate": FAR, "compute_seconds": each(0.005, 1)}, 0.5),
        (1, {"rate": FAR, "compute_seconds": each(0.005, 1), "workers": 4}, 1.0),
        # no readers: the trainer reads 10 ms, then computes 20 ms
        (1, {"workers": 0, "window": 0}, 2 / 3),
        # receiving a batch that is ready delays a host that asks after the step
        (1, {"costs": TAKES_5_MS, "synchronous": True}, 20 / 25),
        (1, {"costs": TAKES_5_MS}, 1.0),
        # four workers want a core 40 ms a batch, two cores: 50 batches/s, asked for 100
        (2, {"rate": FAST, "after_seconds": each(0.04), "cores": 2.0}, 0.5),
        # four workers decode for 0.1 ms and sleep for 39 ms a batch: 100 batches/s on one core, as many as asked for
        (2, {"rate": FAST, "after_seconds": each(0.0001), "asleep_seconds": each(0.039), "cores": 1.0}, 1.0),
    ],
)
def test_it_is_what_arithmetic_says(ranks: int, changes: dict[str, Any], wanted: float) -> None:
    assert au(scene(ranks, 400, **changes)) == pytest.approx(wanted, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 5),
    steps=st.integers(1, 30),
    workers=st.integers(0, 4),
    factor=st.integers(1, 3),
    drawn=st.fixed_dictionaries({"in_turn": st.booleans(), "synchronous": st.booleans()}),
    decodes=st.booleans(),
    sleeps=st.booleans(),
    late=st.sampled_from([0.0, 0.003]),
    seed=st.integers(0, 1000),
)
def test_no_rule_of_a_loader_is_broken(
    ranks: int, steps: int, workers: int, factor: int, drawn: Any, decodes: bool, sleeps: bool, late: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shape = (ranks, steps)
    window = max(1, workers) * factor
    made = scene(
        ranks,
        steps,
        work_bytes=random.exponential(MB, shape),
        after_seconds=random.exponential(0.005, shape) * decodes,
        asleep_seconds=random.exponential(0.005, shape) if sleeps else None,
        compute_seconds=random.uniform(0, 0.03, shape),
        workers=workers,
        window=window,
        costs=HostCosts(hand_over_seconds=0.001, epoch_start_seconds=0.002, step_seconds=late),
        **drawn,
    )
    times, near = simulate(made), 1e-9
    assert (times.read >= times.started).all()
    assert (times.finished >= times.read - near).all()
    assert (times.ready >= times.finished + made.costs.hand_over_seconds - near).all()
    assert (np.diff(times.ready, axis=1) >= -near).all(), "batches come in order"
    begin = np.maximum(times.ready, times.free[:-1])
    ends = (begin + made.compute_seconds).max(axis=0)
    assert times.free[1:] == pytest.approx(ends), "a step is over when the slowest is"
    if made.workers and times.ready.shape[1] > window:
        later = times.started[:, window:] - times.ready[:, : -window or None]
        assert (later >= -near).all(), "no more batches ahead than the window"
    busy = (times.read - times.started).sum()
    assert made.work_bytes.sum() <= 100 * MB * busy + 1, "the storage gives no more than it has"
    span = times.read.max() - times.started.min()
    assert made.work_bytes.sum() <= 100 * MB * span * (1 + near) + 1
