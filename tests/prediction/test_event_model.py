"""The model keeps to what arithmetic says where arithmetic can say it, and never breaks the rules of a loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.jobs.training.prediction.curve import CurvePoint, flat, rates
from dlemu.jobs.training.prediction.event_model import HostCosts, Scene, simulate

FREE = HostCosts(hand_over_seconds=0.0, epoch_start_seconds=0.0, step_seconds=0.0)
MB = 1e6


def scene(ranks: int = 2, steps: int = 100, **changes: Any) -> Scene:
    shape = (ranks, steps)
    settings: dict[str, Any] = {
        "app_bytes": np.full(shape, MB),
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


@pytest.mark.parametrize(("ranks", "wanted"), [(1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25)])
def test_a_narrow_storage_gives_its_share(ranks: int, wanted: float) -> None:
    """100 MB/s feed two accelerators of 50 MB/s; first steps are the difference to 1."""
    assert au(scene(ranks, 400)) == pytest.approx(wanted, rel=0.02)


def test_few_readers_of_a_slow_storage_are_the_limit() -> None:
    """20 ms a read whoever reads beside: two readers make 100 batches/s, the accelerator takes 200."""
    far = rates((CurvePoint(readers=1, mb_per_second=50.0), CurvePoint(readers=64, mb_per_second=3200.0)), 64)
    slow = scene(1, 400, rate=far, compute_seconds=np.full((1, 400), 0.005))
    assert au(slow) == pytest.approx(0.5, rel=0.02)
    assert au(scene(1, 400, rate=far, compute_seconds=np.full((1, 400), 0.005), workers=4)) > 0.98


def test_a_host_that_asks_after_the_step_does_not_overlap() -> None:
    """No readers: the trainer reads 10 ms, then computes 20 ms."""
    assert au(scene(1, 200, workers=0, window=0)) == pytest.approx(2 / 3, rel=0.01)


@pytest.mark.parametrize(("synchronous", "wanted"), [(True, 20 / 25), (False, 1.0)])
def test_receiving_a_ready_batch_delays_a_host_that_asks_after_the_step(synchronous: bool, wanted: float) -> None:
    takes_5_ms = HostCosts(hand_over_seconds=0.0, take_seconds=0.005, epoch_start_seconds=0.0, step_seconds=0.0)
    assert au(scene(1, 400, costs=takes_5_ms, synchronous=synchronous)) == pytest.approx(wanted, rel=0.01)


def test_decoding_shares_the_cores() -> None:
    """Four workers want a core 40 ms a batch, two cores: 50 batches/s, asked for 100."""
    decoding = scene(2, 200, after_seconds=np.full((2, 200), 0.04), cores=2.0, rate=rates(flat(1e6), 64))
    assert au(decoding) == pytest.approx(0.5, rel=0.05)


def test_sleeping_workers_need_no_core() -> None:
    """Four workers decode for 0.1 ms and sleep for 39 ms a batch: 100 batches/s on one core, as many as asked for."""
    shape = (2, 200)
    sleeping = scene(
        *shape,
        after_seconds=np.full(shape, 0.0001),
        asleep_seconds=np.full(shape, 0.039),
        cores=1.0,
        rate=rates(flat(1e6), 64),
    )
    assert au(sleeping) == pytest.approx(1.0, rel=0.02)


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
