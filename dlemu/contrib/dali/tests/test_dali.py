"""Files through DALI's own readers: the planned samples in the planned order, and faults with a file's name."""

from __future__ import annotations

import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import DatasetError
from datagen.fetch import Fetcher
from datagen.inspection import inspect
from datagen.registry import find
from datagen.spec import DatasetSpec
from dlemu.config.schema import Reader, Train, Workload
from dlemu.jobs.training.plan import TrainingJob, make_job
from dlemu.loaders.loader_base import Batch, LoaderSpec
from tests.datasets import make_dataset

BATCH, RANKS = 4, 2
needs_dali = pytest.mark.skipif(
    find_spec("nvidia") is None or find_spec("nvidia.dali") is None, reason="the extra `dali` is not installed"
)


def job_of(dataset: DatasetSpec, ranks: int = RANKS, steps: int = -1, **reader: Any) -> TrainingJob:
    settings: dict[str, Any] = {
        "data_loader": "dali",
        "batch_size": BATCH,
        "read_threads": 2,
        "file_shuffle": "seed",
    } | reader
    workload = Workload(
        ranks=ranks, dataset=dataset, reader=Reader(**settings), train=Train(epochs=2, total_training_steps=steps)
    )
    return make_job(workload, ranks, inspect(dataset), folder="", started_at="")


def run(spec: LoaderSpec, steps: int, epoch: int = 1) -> list[Batch]:
    """Deliver an epoch, with the data copied: it holds until the next but one batch is taken."""
    loader = find("dlemu.loaders", "dali", "Loader")(spec)
    loader.start()
    try:
        return [
            batch._replace(data=[bytes(memoryview(sample)) for sample in batch.data])
            for batch in loader.batches("train", epoch, steps)
        ]
    finally:
        loader.close()


def planned(spec: LoaderSpec, step: int, epoch: int = 1) -> list[bytes]:
    """What dlemu's own reader brings of a batch."""
    phase = spec.phases["train"]
    out = memoryview(bytearray(phase.fetch.slot_bytes(BATCH)))
    fetched = Fetcher(phase.fetch).fetch(phase.plan.sample_ids(epoch, step).tolist(), out)
    return [bytes(out[start : start + length]) for start, length in fetched.places]


@needs_dali
@pytest.mark.parametrize("resize", [0, 5000])
@pytest.mark.parametrize("samples", [1, 3])
def test_arrays_come_in_the_planned_order_and_are_cropped_as_by_every_loader(
    samples: int, resize: int, tmp_path: Path
) -> None:
    dataset = make_dataset(
        tmp_path,
        format="npy",
        num_files_train=20,
        num_samples_per_file=samples,
        record_length_bytes_resize=resize,
        record_element_type="uint16",
    )
    job = job_of(dataset, sample_shuffle="seed")
    spec = job.loader_spec(1)
    batches = run(spec, job.train_plan.steps_per_epoch, epoch=2)
    assert all(batch.trace.app_bytes > 0 for batch in batches)
    assert [batch.data for batch in batches] == [planned(spec, step, epoch=2) for step in range(1, len(batches) + 1)]


@needs_dali
def test_pictures_are_decoded(tmp_path: Path) -> None:
    """Two decoders round differently, by one at most."""
    dataset = make_dataset(
        tmp_path, format="jpeg", num_files_train=8, record_length_bytes=30_000, record_length_bytes_stdev=0
    )
    job = job_of(dataset, ranks=1, decode="full")
    spec = job.loader_spec(0)
    for number, batch in enumerate(run(spec, 2), 1):
        for pixels, wanted in zip(batch.data, planned(spec, number), strict=True):
            ours, theirs = (np.frombuffer(data, np.uint8).astype(int) for data in (wanted, pixels))
            assert np.abs(ours - theirs).max() <= 1


@needs_dali
@pytest.mark.parametrize("window", [0, 16])
@pytest.mark.parametrize(("files", "ranks", "steps"), [(6, 2, 5), (6, 2, 3), (2, 3, 2)])
def test_records_of_cut_epochs_and_shared_files_are_the_planned_ones(
    files: int, ranks: int, steps: int, window: int, tmp_path: Path
) -> None:
    dataset = make_dataset(tmp_path, format="tfrecord", num_files_train=files, num_samples_per_file=14)
    job = job_of(
        dataset, ranks=ranks, sample_shuffle="seed" if window else "off", shuffle_size=window or 1, prefetch_size=3
    )
    assert steps <= job.train_plan.steps_per_epoch
    for rank in range(ranks):
        spec = job.loader_spec(rank)
        found = [sample for batch in run(spec, steps) for sample in batch.data]
        wanted = [sample for step in range(1, steps + 1) for sample in planned(spec, step)]
        assert Counter(found) == Counter(wanted)
        assert (found != wanted) == bool(window)


def victim(spec: LoaderSpec, step: int) -> Path:
    """The first file of a batch."""
    phase = spec.phases["train"]
    return Path(phase.fetch.layout.path(phase.fetch.layout.locate(int(phase.plan.sample_ids(1, step)[0]))[0]))


@needs_dali
@pytest.mark.parametrize("harm", ["gone", "truncated"])
@pytest.mark.parametrize("kind", ["npy none", "jpeg full", "png none"])
def test_a_file_that_is_not_whole_is_named(kind: str, harm: str, tmp_path: Path) -> None:
    name, decode = kind.split()
    dataset = make_dataset(
        tmp_path, format=name, num_files_train=16, record_length_bytes=30_000, record_length_bytes_stdev=0
    )
    job = job_of(dataset, decode=decode)
    spec = job.loader_spec(0)
    file = victim(spec, 2)
    if harm == "gone":
        file.unlink()
    else:
        os.truncate(file, 7000)
    with pytest.raises(DatasetError, match=str(file)):
        run(spec, 2)


@needs_dali
def test_a_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, format="tfrecord", num_files_train=4, num_samples_per_file=8)
    spec = job_of(dataset, file_shuffle="off").loader_spec(0)
    file = victim(spec, 2)
    data = bytearray(file.read_bytes())
    size = len(data) // 8
    data[3 * size + 12 : 3 * size + 40] = b"\xff" * 28
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=str(file)):
        run(spec, 4)


@needs_dali
def test_an_index_of_other_records_is_told(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, format="tfrecord", num_files_train=4, num_samples_per_file=8)
    spec = job_of(dataset).loader_spec(0)
    index = tmp_path / "index" / "train" / f"{victim(spec, 1).name}.idx"
    lines = index.read_text().splitlines()
    index.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(DatasetError, match=r"\.idx: the index has 7 records, not 8"):
        run(spec, 4)
    index.unlink()
    with pytest.raises(DatasetError, match=r"\.idx is missing.*tfrecord2idx"):
        run(spec, 4)
