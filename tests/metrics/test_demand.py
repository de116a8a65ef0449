"""What busy accelerators ask of the storage, against figures that can be computed by hand."""

from __future__ import annotations

import pytest

from dlemu.config import load
from dlemu.metrics.demand import demand, row_group_reads


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


@pytest.mark.parametrize(
    ("batch", "rows", "times"), [(16384, 6144, 1.25), (48, 24, 1.0), (8, 24, 3.0), (10, 24, 3.2), (24, 288, 4.0)]
)
def test_each_worker_in_turn_reads_a_row_group_of_which_its_batches_have_rows(
    batch: int, rows: int, times: float
) -> None:
    words = ["dataset.format=parquet", f"dataset.parquet.row_group_size={rows}", f"reader.batch_size={batch}"]
    words += [f"dataset.num_samples_per_file={batch * rows}", "dataset.record_length_bytes=1000"]
    workload = load([*words, "reader.read_threads=4"])
    assert row_group_reads(workload) == pytest.approx(times)
    begins = range(0, rows * batch, batch)
    touched = {
        (begin // batch % 4, group)
        for begin in begins
        for group in range(begin // rows, (begin + batch - 1) // rows + 1)
    }
    assert len(touched) * rows / (rows * batch) == pytest.approx(times), "counted worker by worker"
    assert demand("own", workload).sample_bytes == pytest.approx(1000 * times, abs=50 * times), "records are square"
    for in_order in ("reader.worker_streams=true", "reader.read_threads=1"):
        assert row_group_reads(load([*words, "reader.read_threads=4", in_order])) == 1
