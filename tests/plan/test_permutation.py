import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlemu.plan.samples import permute


@given(n=st.integers(0, 3000), seed=st.integers(0, 2**64 - 1))
def test_every_shuffle_is_a_bijection(n: int, seed: int) -> None:
    shuffled = permute(np.arange(n), n, seed)
    assert np.array_equal(np.sort(shuffled), np.arange(n))


@given(n=st.integers(1, 10**12), seed=st.integers(0, 2**32), position=st.integers(0, 10**12))
def test_a_position_is_computed_alone_and_stays_in_range(n: int, seed: int, position: int) -> None:
    position %= n
    alone = permute(np.array([position]), n, seed)[0]
    among = permute(np.array([0, position, n - 1]), n, seed)[1]
    assert 0 <= alone < n
    assert alone == among


def test_seeds_give_different_orders_that_look_random() -> None:
    n = 10_000
    first, second = permute(np.arange(n), n, 1), permute(np.arange(n), n, 2)
    assert (first == second).mean() < 0.01
    assert (first == np.arange(n)).mean() < 0.01
    assert abs(np.corrcoef(np.arange(n), first)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05


def test_neighbours_are_torn_apart() -> None:
    n = 100_000
    steps = np.abs(np.diff(permute(np.arange(n), n, 7)))
    assert (steps == 1).mean() < 0.001
    assert abs(steps.mean() / (n / 3) - 1) < 0.05  # two independent uniform places lie n/3 apart on average


def test_the_orders_never_change() -> None:
    """What a run of an older version read is recomputed from its seed."""
    orders = [permute(np.arange(n), n, seed).tolist() for n, seed in ((10, 123), (7, 0), (1, 5), (2, 3), (2, 4))]
    assert orders[:4] == [[9, 6, 5, 2, 3, 8, 4, 7, 1, 0], [3, 0, 2, 1, 4, 6, 5], [0], [0, 1]]
    assert {tuple(permute(np.arange(2), 2, seed).tolist()) for seed in range(20)} == {(0, 1), (1, 0)}
    far = permute(np.array([0, 1, 12345, 10**12 - 1]), 10**12, 2**70 + 9)
    assert far.tolist() == [72546429045, 774832952194, 516658440978, 712235415240]
    assert far.dtype == np.int64
    assert permute(np.array([0, 1]), 1000, -5).tolist() == [541, 349]
