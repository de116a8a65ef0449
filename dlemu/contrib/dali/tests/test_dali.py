"""Files through DALI's own readers: the planned samples in the planned order, and faults with a file's name."""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml

from datagen.errors import DatasetError, UserError
from datagen.fetch import Fetcher
from datagen.inspection import inspect
from datagen.registry import find
from dlemu.config import load
from dlemu.config.schema import Reader, Train, Workload
from dlemu.config.validate import check_runnable
from dlemu.contrib.dali.traits import Traits
from dlemu.dlio.config import dlio_yaml
from dlemu.jobs.training.plan import TrainingJob, make_job
from dlemu.loaders.loader_base import Batch, LoaderSpec
from dlemu.machine import thread_accounting
from tests.config.test_dlio import golden
from tests.datasets import make_dataset

BATCH = 4
needs_dali = pytest.mark.skipif(not Traits().is_installed(), reason="the extra `dali` is not installed")


def job_of(dataset: Any, ranks: int = 2, **reader: Any) -> TrainingJob:
    settings: dict[str, Any] = {"data_loader": "dali", "batch_size": BATCH, "read_threads": 2, "file_shuffle": "seed"}
    workload = Workload(ranks=ranks, dataset=dataset, reader=Reader(**settings | reader), train=Train(epochs=2))
    return make_job(workload, ranks, inspect(dataset))


def run(spec: LoaderSpec, steps: int, epoch: int = 1) -> list[Batch]:
    """Deliver an epoch, with the data copied: it holds until the next but one batch is taken."""
    with closing(find("dlemu.loaders", "dali", "Loader")(spec)) as loader:
        loader.start()
        batches = loader.batches("train", epoch, steps)
        return [batch._replace(data=[bytes(memoryview(sample)) for sample in batch.data]) for batch in batches]


def planned(spec: LoaderSpec, step: int, epoch: int = 1) -> list[bytes]:
    phase = spec.phases["train"]
    out = memoryview(bytearray(phase.fetch.slot_bytes(BATCH)))
    fetched = Fetcher(phase.fetch).fetch(phase.plan.sample_ids(epoch, step).tolist(), out)
    return [bytes(out[start : start + length]) for start, length in fetched.places]


@needs_dali
@pytest.mark.parametrize("resize", [0, 5000])
@pytest.mark.parametrize("samples", [1, 3])
def test_arrays_come_as_planned_and_cropped_as_by_every_loader(samples: int, resize: int, tmp_path: Path) -> None:
    settings = {"num_samples_per_file": samples, "record_element_type": "uint16"}
    dataset = make_dataset(tmp_path, format="npy", record_length_bytes_resize=resize, **settings)
    job = job_of(dataset, sample_shuffle="seed")
    spec = job.loader_spec(1)
    batches = run(spec, job.train_plan.steps_per_epoch, epoch=2)
    assert all(batch.trace.app_bytes > 0 for batch in batches)
    assert [batch.data for batch in batches] == [planned(spec, step, epoch=2) for step in range(1, len(batches) + 1)]


@needs_dali
def test_pictures_are_decoded(tmp_path: Path) -> None:
    """Two decoders round differently, by one at most."""
    settings = {"format": "jpeg", "record_length_bytes": 30_000, "record_length_bytes_stdev": 0}
    spec = job_of(make_dataset(tmp_path, num_files_train=8, **settings), ranks=1, decode="full").loader_spec(0)
    for number, batch in enumerate(run(spec, 2), 1):
        for pixels, wanted in zip(batch.data, planned(spec, number), strict=True):
            ours, theirs = (np.frombuffer(data, np.uint8).astype(int) for data in (wanted, pixels))
            assert np.abs(ours - theirs).max() <= 1


def test_what_dali_reads_while_the_trainer_computes_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, read_bytes = job_of(make_dataset(tmp_path, format="npy")).loader_spec(0), [5000]
    monkeypatch.setattr(thread_accounting, "process_storage_bytes", lambda: sum(read_bytes))
    feed = SimpleNamespace(phase=spec.phases["train"], check=lambda *_: (0, 0))
    parts = SimpleNamespace(Feed=None, FileFeed=lambda *_: feed, build=lambda *_: SimpleNamespace(run=lambda: ([], [])))
    with patch.dict(sys.modules, {"dlemu.contrib.dali.pipeline": parts}):  # as DALI may not be installed
        sys.modules.pop("dlemu.contrib.dali.loader", None)
        loader, counted = import_module("dlemu.contrib.dali.loader").Loader(spec), []
    for batch in loader.batches("train", 1, 3):
        counted.append(batch.trace.storage_bytes)
        read_bytes.append(1000)
    assert counted == [0, 1000, 1000]


def victim(spec: LoaderSpec, step: int) -> Path:
    phase = spec.phases["train"]
    file, _ = phase.fetch.layout.locate(int(phase.plan.sample_ids(1, step)[0]))
    return Path(phase.fetch.layout.path(file))


@needs_dali
@pytest.mark.parametrize("harm", [os.unlink, lambda file: os.truncate(file, 7000)])
@pytest.mark.parametrize(("name", "decode"), [("npy", "none"), ("jpeg", "full"), ("png", "none")])
def test_a_file_that_is_not_whole_is_named(name: str, decode: str, harm: Any, tmp_path: Path) -> None:
    settings = {"num_files_train": 16, "record_length_bytes": 30_000, "record_length_bytes_stdev": 0}
    spec = job_of(make_dataset(tmp_path, format=name, **settings), decode=decode).loader_spec(0)
    file = victim(spec, 2)
    harm(file)
    with pytest.raises(DatasetError, match=str(file)):
        run(spec, 2)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["dataset.format=tfrecord"], "'tfrecord', for which DALI has no reader; wanted one of jpeg, npy, png"),
        (["dataset.format=jpeg", "reader.odirect=true"], "reader.odirect is true: DALI itself reads jpeg files"),
        (["dataset.format=npy", "reader.verify=true"], "reader.verify is true: DALI itself reads npy files"),
    ],
)
def test_what_dali_can_not_do_is_refused_before_the_run(settings: list[str], wanted: str) -> None:
    with pytest.raises(UserError, match=re.escape(wanted)):
        check_runnable(load(["reader.data_loader=dali", *settings]))
    check_runnable(load(["reader.data_loader=dali", "dataset.format=npy", "reader.odirect=true"]))


def test_dlio_s_name_of_the_loader_that_reads_by_itself() -> None:
    text = dlio_yaml(load(["dataset.format=npy", "reader.data_loader=dali"]))
    assert yaml.safe_load(text)["reader"]["data_loader"] == "native_dali"
    workload = golden("tensorflow", "reader.data_loader=native_dali")
    noted = {note.split(" ", 1)[0] for note in workload.notes}
    assert workload.reader.data_loader == "dali"
    assert noted >= {"reader.computation_threads", "reader.transfer_size"}
