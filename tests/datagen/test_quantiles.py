"""What was measured is drawn again: its quantiles, and exactly its mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datagen.generate import files_of
from datagen.layout import record_shapes
from datagen.quantiles import values_at
from datagen.spec import DatasetSpec

VALUES = st.lists(st.floats(0.01, 1e4), min_size=3, max_size=101).map(sorted)
ALL = (np.arange(1_000_000) + 0.5) / 1_000_000
"""So many that the steepest bend, of which all but a ten thousandth is flat, has a hundred of them."""


@settings(max_examples=40)
@given(VALUES, st.floats(0, 1))
@example([0.0625, 0.125, 0.125, 3951.0], 0.0)
def test_the_mean_is_exact_and_larger_shares_have_larger_values(quantiles: list[float], place: float) -> None:
    mean = quantiles[0] + place * (quantiles[-1] - quantiles[0])
    values = values_at(quantiles, mean, ALL)
    assert values.mean() == pytest.approx(mean, rel=2e-3)
    assert (np.diff(values) >= -1e-9 * values[-1]).all()


@pytest.mark.parametrize("name", ["npz", "jpeg", "tfrecord"])
def test_files_have_the_sizes_that_were_measured(name: str) -> None:
    """Their mean too, and a file's size does not depend on how many there are."""
    quantiles = tuple(np.quantile(np.random.default_rng(3).lognormal(11, 0.6, 10_000), np.linspace(0, 1, 65)).tolist())
    spec = DatasetSpec(
        format=name, num_files_train=400, record_length_bytes=75_000, record_length_bytes_quantiles=quantiles
    )
    files = files_of(spec)
    assert files.sizes is not None
    assert files.sizes.mean() == pytest.approx(75_000, rel=0.01)
    assert np.quantile(files.sizes, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(quantiles, [0.1, 0.5, 0.9]), rel=0.05)
    assert (record_shapes(spec, 100, 110) == record_shapes(spec, 0, 400)[100:110]).all()
