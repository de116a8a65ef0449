"""Every loader with every format: exactly the planned samples with their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.registry import find, names
from datagen.spec import DatasetSpec, ParquetSpec
from dlemu.config.schema import Reader, Train, Workload
from dlemu.jobs.training.plan import TrainingJob, make_job
from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.loaders.loader_base import Batch, BatchTrace, Loader
from dlemu.loaders.traits_base import traits_of
from dlemu.metrics.cache import each_sample_once
from dlemu.plan.samples import RankPlan
from tests.datasets import make_dataset
from tests.loaders import skip_without_framework

BATCH, RANKS = 4, 2
SAMPLES_PER_FILE = (1, 3)
DATASETS = [
    DatasetSpec(
        format=name,
        num_files_train=18 // samples,
        num_samples_per_file=samples,
        record_length_bytes=12_000,
        parquet=ParquetSpec(row_group_size=1),  # row groups are delivered whole: let each be one sample
    )
    for name in names("datagen.formats")
    for samples in SAMPLES_PER_FILE
]
"""Each format with one sample a file and with several."""
POSSIBLE = [spec for spec in DATASETS if not spec.check()]
LOADERS = [name for name in names("dlemu.loaders") if name != "none"]


def label(spec: DatasetSpec) -> str:
    return f"{spec.format}-{spec.num_samples_per_file}"


@pytest.fixture(scope="module", params=POSSIBLE, ids=label)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatasetSpec:
    settings = {field.name: getattr(request.param, field.name) for field in fields(DatasetSpec)}
    return make_dataset(tmp_path_factory.mktemp("data"), **settings)


@pytest.fixture
def _can_read(name: str, dataset: DatasetSpec) -> None:
    """Skip what the loader has no framework or no reader for."""
    skip_without_framework(name)
    if problems := list(traits_of(name).problems(Workload(dataset=dataset))):
        pytest.skip(problems[0])


def delivered(job: TrainingJob, rank: int, epoch: int) -> Iterator[Batch]:
    loader: Loader = find("dlemu.loaders", job.workload.reader.data_loader, "Loader")(job.loader_spec(rank))
    loader.start()
    yield from loader.batches("train", epoch, job.train_plan.steps_per_epoch)
    loader.close()


def as_bytes(sample: Any) -> bytes:
    value = sample.numpy() if hasattr(sample, "numpy") else sample
    return value if isinstance(value, bytes) else bytes(value)


def planned(job: TrainingJob, rank: int, epoch: int) -> Counter[bytes]:
    """The bytes of the planned samples, read one by one."""
    spec: FetchSpec = job.loader_spec(rank).phases["train"].fetch
    fetcher, out, found = Fetcher(spec), AlignedBuffer().view(spec.slot_bytes(1)), Counter[bytes]()
    for step in range(1, job.train_plan.steps_per_epoch + 1):
        for sample in RankPlan(job.train_plan, rank).sample_ids(epoch, step).tolist():
            ((start, length),) = fetcher.fetch([sample], out).places
            found[bytes(out[start : start + length])] += 1
    return found


def logged(traces: list[BatchTrace]) -> StepRows:
    rows = np.zeros(len(traces), STEP_DTYPE)
    rows["samples"] = [trace.samples for trace in traces]
    rows["sample_hash"] = [trace.sample_hash for trace in traces]
    return rows


@pytest.mark.usefixtures("_can_read")
@pytest.mark.parametrize("name", LOADERS)
def test_each_rank_gets_exactly_its_planned_samples(name: str, dataset: DatasetSpec, tmp_path: Path) -> None:
    shuffled: dict[str, Any] = {"file_shuffle": "seed", "sample_shuffle": "seed"}
    reader = Reader(data_loader=name, batch_size=BATCH, read_threads=3, **shuffled)
    workload = Workload(ranks=RANKS, dataset=dataset, reader=reader, train=Train(epochs=2))
    job = make_job(workload, RANKS, inspect(dataset), folder=str(tmp_path))
    traces = []
    for rank in range(RANKS):
        seen = Counter[bytes]()
        for batch in delivered(job, rank, epoch=2):
            seen.update(map(as_bytes, batch.data))
            traces.append(batch.trace)
        assert seen == planned(job, rank, epoch=2)
    assert each_sample_once(job.train_plan, 2, job.train_plan.steps_per_epoch, logged(traces)) is True
    assert all(trace.app_bytes > 0 for trace in traces) or dataset.format == "synthetic"


def test_only_pictures_and_raw_bytes_have_no_several_samples_a_file() -> None:
    several = {spec.format for spec in POSSIBLE if spec.num_samples_per_file > 1}
    assert set(names("datagen.formats")) - several == {"jpeg", "png", "raw", "tiff"}
