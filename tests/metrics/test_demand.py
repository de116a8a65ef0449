"""What busy accelerators ask of the storage, against figures that can be computed by hand."""

from __future__ import annotations

import pytest

from dlemu.config import load
from dlemu.metrics.demand import demand


def test_an_h100_on_unet3d_asks_for_seven_samples_each_323_ms() -> None:
    asked = demand("unet3d", load(["workload=unet3d", "accelerator=h100"]))
    assert asked.samples_per_second == pytest.approx(7 / 0.323)
    assert asked.mb_per_second == pytest.approx(7 * 146.6 / 0.323, rel=1e-3)
    assert (asked.num_files, asked.num_samples, asked.au_threshold_percent) == (168, 168, 90)
    assert asked.dataset_gb == pytest.approx(24.6, rel=1e-2)


def test_samples_share_files_and_times_may_be_drawn() -> None:
    words = ["dataset.num_files_train=10", "dataset.num_samples_per_file=30", "dataset.record_length_bytes=10000"]
    words += ["reader.batch_size=5", "train.computation_time={type:uniform,min:0.1,max:0.3}"]
    asked = demand("own", load(words))
    assert asked.num_samples == 300
    assert asked.dataset_gb == pytest.approx(300 * 10_000 / 1e9)
    assert asked.samples_per_second == pytest.approx(25)
    assert asked.mb_per_second == pytest.approx(0.25)


def test_an_accelerator_that_computes_nothing_has_no_limit() -> None:
    asked = demand("own", load(["train.computation_time=0"]))
    assert asked.samples_per_second is None
    assert asked.mb_per_second is None
