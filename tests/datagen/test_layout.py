"""Names and sizes of files: drawn as NumPy draws, or as they were measured, whatever part of them is asked for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datagen.generate import files_of
from datagen.layout import layouts, nominal_sample_bytes, record_shapes
from datagen.quantiles import values_at
from datagen.spec import DatasetSpec

UNET3D = DatasetSpec(
    format="npz",
    data_folder="d",
    num_files_train=168,
    num_files_eval=8,
    record_length_bytes=146600628,
    record_length_bytes_stdev=68341808,
)


def test_names_are_padded_to_the_width_of_the_count_and_sub_folders_take_turns() -> None:
    train, valid = layouts(UNET3D)
    assert (train.path(0), train.path(167)) == ("d/train/img_000_of_168.npz", "d/train/img_167_of_168.npz")
    assert valid.path(3) == "d/valid/img_3_of_8.npz"
    train, _ = layouts(DatasetSpec(format="npz", data_folder="d", num_files_train=100, num_subfolders_train=10))
    assert train.path(13) == "d/train/03/img_013_of_100.npz"
    assert train.folders() == [f"d/train/0{i}" for i in range(10)]


def test_a_layout_is_small_however_many_files() -> None:
    layout, _ = layouts(DatasetSpec(format="npz", num_files_train=50_000_000))
    assert len(pickle.dumps(layout)) < 1000
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_shapes_equal_numpys_own_draw_and_each_other_without_deviation() -> None:
    random = np.random.RandomState(10)
    root = 146600628**0.5
    drawn = random.normal(int(root), 68341808 / 2.0 / root, 2 * 168)
    wanted = [max(int(value), 1) for value in drawn]
    assert record_shapes(UNET3D, 0, 168).ravel().tolist() == wanted
    spec = DatasetSpec(format="npz", record_length_bytes=1000)
    assert record_shapes(spec, 12345, 12346).tolist() == [[31, 31]]
    assert nominal_sample_bytes(spec) == 961
    text = DatasetSpec(format="csv", record_length_bytes=1000)
    assert nominal_sample_bytes(text) == round(961 * np.mean([len(f"{number},") for number in range(256)]))


@pytest.mark.parametrize("start", [0, 1, 7, 65535, 65536, 65537, 140000])
def test_a_shape_does_not_depend_on_where_the_draw_starts(start: int) -> None:
    everything = record_shapes(UNET3D, 0, 140010)
    assert (record_shapes(UNET3D, start, start + 10) == everything[start : start + 10]).all()
    assert record_shapes(UNET3D, start, start + 1).tolist() == [everything[start].tolist()]


# Sizes that were measured

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
