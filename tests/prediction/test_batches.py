"""What a model reads in each batch, beside what the readers of a run read."""

from __future__ import annotations

import numpy as np
import pytest

from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.spec import DatasetSpec, ParquetSpec
from dlemu.jobs.training.prediction.batches import row_group_shares
from dlemu.plan.samples import Plan, RankPlan
from tests.datagen.conftest import make

ROWS, FILES = 60, 6


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> DatasetSpec:
    """Files of three row groups of 20 rows."""
    spec = DatasetSpec(
        data_folder=str(tmp_path_factory.mktemp("tables")),
        format="parquet",
        num_files_train=FILES,
        num_samples_per_file=ROWS,
        record_length_bytes=1000,
        parquet=ParquetSpec(row_group_size=20),
    )
    return make(spec)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("ranks", "workers", "batch"), [(1, 1, 6), (1, 2, 6), (2, 2, 4), (1, 3, 20), (1, 2, 45)])
def test_row_groups_are_read_in_the_batches_in_which_workers_read_them(
    ranks: int, workers: int, batch: int, streams: bool, tables: DatasetSpec
) -> None:
    plan = Plan(
        num_files=FILES,
        num_samples_per_file=ROWS,
        batch_size=batch,
        ranks=ranks,
        file_shuffle=True,
        sample_shuffle=False,
        seed=3,
        seed_change_epoch=True,
        worker_streams=workers if streams else 1,
    )
    found = inspect(tables)
    fetch = FetchSpec(found, found.train)
    room, read = memoryview(bytearray(fetch.slot_bytes(batch))), np.zeros((ranks, plan.steps_per_epoch))
    for rank in range(ranks):
        fetchers = [Fetcher(fetch) for _ in range(workers)]
        for step in range(1, plan.steps_per_epoch + 1):
            samples = RankPlan(plan, rank).sample_ids(1, step)
            read[rank, step - 1] = fetchers[(step - 1) % workers].fetch(samples, room).app_bytes
    shares = row_group_shares(plan, 20, workers, plan.steps_per_epoch)
    assert shares.mean() == pytest.approx(1.0)
    # Beyond the last whole turn of its workers, a rank reads what all ranges left over, wherever that lies.
    whole = plan.steps_per_epoch // workers * workers
    expected, found_shares = read[:, :whole] / read[:, :whole].mean(), shares[:, :whole] / shares[:, :whole].mean()
    assert found_shares == pytest.approx(expected, abs=0.15)
