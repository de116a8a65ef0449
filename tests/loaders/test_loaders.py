"""Every loader delivers exactly the planned samples, whole, in order, and counts what it read."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError, DlemuError
from datagen.fetch import Fetcher
from datagen.inspection import inspect
from datagen.registry import find, names
from datagen.spec import DatasetSpec, ParquetSpec
from dlemu.config.schema import Duration, Reader, Workload
from dlemu.jobs.training.plan import TrainingJob, make_job
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.loaders.loader_base import Batch, Loader, LoaderSpec, TimedBatches
from dlemu.loaders.traits_base import traits_of
from dlemu.machine.environment import installed_version
from dlemu.metrics.cache import each_sample_once
from dlemu.plan.samples import hash_samples
from tests.datasets import make_dataset

BATCH, RANKS = 4, 2
ALL = names("dlemu.loaders")
READING = [name for name in ALL if name != "none"]
IN_ORDER = [name for name in READING if not traits_of(name).formats]
"""Those that read any format, in the planned order."""
DATASETS = [
    DatasetSpec(
        format=name,
        num_files_train=18 // samples,
        num_samples_per_file=samples,
        record_length_bytes=12_000,
        parquet=ParquetSpec(row_group_size=1),  # row groups are delivered whole: let each be one sample
    )
    for name in names("datagen.formats")
    for samples in (1, 3)
]
POSSIBLE = [spec for spec in DATASETS if not spec.check()]
"""Each format with one sample a file and, if it can be, with several."""
Datasets = Callable[[str], DatasetSpec]


@pytest.fixture(scope="module")
def dataset_for(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    """Return a function that gives a dataset that a loader reads: of npz files if it can."""

    @cache
    def of_format(name: str) -> DatasetSpec:
        return make_dataset(tmp_path_factory.mktemp("dataset"), format=name)

    return lambda loader: of_format(format_for(loader))


def format_for(loader: str) -> str:
    formats = traits_of(loader).formats or ("npz",)
    return next(name for name in ("npz", "npy", *formats) if name in formats)


@pytest.fixture
def dataset(dataset_for: Datasets) -> DatasetSpec:
    return dataset_for("none")


@pytest.fixture(autouse=True)
def _framework(request: pytest.FixtureRequest) -> None:
    """Skip what the loader has no framework or no reader for."""
    if "name" in request.fixturenames:
        traits = traits_of(request.getfixturevalue("name"))
        if traits.packages and not any(map(installed_version, traits.packages)):
            pytest.skip(f"{traits.framework} is not installed: pip install 'dlemu[{traits.extra}]'")
        if "any_dataset" in request.fixturenames:
            workload = Workload(dataset=request.getfixturevalue("any_dataset"))
            for problem in traits.problems(workload):
                pytest.skip(problem)


def job_of(dataset: DatasetSpec, ranks: int, *, resize: int = 0, **settings: Any) -> TrainingJob:
    common: dict[str, Any] = {"batch_size": BATCH, "read_threads": 2, "prefetch_size": 4, "nice": 0}
    reader = Reader(**({"file_shuffle": "seed"} | common | settings))
    workload = Workload(ranks=ranks, dataset=replace(dataset, record_length_bytes_resize=resize), reader=reader)
    return make_job(workload, ranks, inspect(workload.dataset), folder="x")


def make_spec(dataset: DatasetSpec, **settings: Any) -> LoaderSpec:
    return job_of(dataset, 1, **settings).loader_spec(0)


def started(name: str, spec: LoaderSpec) -> Iterator[Loader]:
    loader: Loader = find("dlemu.loaders", name, "Loader")(spec)
    loader.start()
    yield loader
    loader.close()


def as_bytes(sample: Any) -> bytes:
    value = sample.numpy() if hasattr(sample, "numpy") else sample
    return value if isinstance(value, bytes) else bytes(value)


def delivered(batch: Batch) -> list[bytes]:
    """The samples' bytes, copied while the batch may be read."""
    return [as_bytes(sample) for sample in batch.data]


def planned(spec: LoaderSpec, epoch: int, steps: int) -> Counter[bytes]:
    phase, found = spec.phases["train"], Counter[bytes]()
    fetcher, out = Fetcher(phase.fetch), AlignedBuffer().view(phase.fetch.slot_bytes(1))
    for step in range(1, steps + 1):
        for sample in phase.plan.sample_ids(epoch, step).tolist():
            ((start, length),) = fetcher.fetch([sample], out).places
            found[bytes(out[start : start + length])] += 1
    return found


@pytest.fixture(scope="module", params=POSSIBLE, ids=lambda spec: f"{spec.format}-{spec.num_samples_per_file}")
def any_dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatasetSpec:
    settings = {field.name: getattr(request.param, field.name) for field in fields(DatasetSpec)}
    return make_dataset(tmp_path_factory.mktemp("data"), **settings)


@pytest.mark.parametrize("name", READING)
def test_each_rank_gets_exactly_its_planned_samples_of_every_format(name: str, any_dataset: DatasetSpec) -> None:
    job, traces = job_of(any_dataset, RANKS, data_loader=name, sample_shuffle="seed", read_threads=3), []
    steps = job.train_plan.steps_per_epoch
    for spec in map(job.loader_spec, range(RANKS)):
        found = Counter[bytes]()
        for loader in started(name, spec):
            for batch in loader.batches("train", 2, steps):
                found.update(delivered(batch))
                traces.append(batch.trace)
        assert found == planned(spec, 2, steps)
    rows = np.zeros(len(traces), STEP_DTYPE)
    rows["samples"], rows["sample_hash"] = zip(*((trace.samples, trace.sample_hash) for trace in traces), strict=True)
    assert each_sample_once(job.train_plan, 2, steps, rows) is True
    assert all(trace.app_bytes > 0 for trace in traces) or any_dataset.format == "synthetic"


def test_only_pictures_and_raw_bytes_have_no_several_samples_a_file() -> None:
    several = {spec.format for spec in POSSIBLE if spec.num_samples_per_file > 1}
    assert set(names("datagen.formats")) - several == {"jpeg", "png", "raw", "tiff"}


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("read_threads", [0, 1, 3])
def test_exactly_the_planned_samples_arrive_whole_and_in_order(
    name: str, read_threads: int, dataset: DatasetSpec
) -> None:
    spec = make_spec(dataset, verify=True, read_threads=read_threads)
    phase = spec.phases["train"]
    layout = phase.fetch.layout
    for loader in started(name, spec):
        for epoch in (1, 2):
            batches = loader.batches("train", epoch, 6)
            for step, batch in enumerate(batches, 1):
                ids = phase.plan.sample_ids(epoch, step)
                expected = [np.load(layout.path(int(sample)))["x"].tobytes() for sample in ids]
                assert delivered(batch) == expected
                assert batch.trace.sample_hash == hash_samples(ids)
                sizes = sum(os.path.getsize(layout.path(int(sample))) for sample in ids)
                assert sum(map(len, expected)) < batch.trace.app_bytes <= sizes, "np.load need not read all, nor twice"
                assert batch.trace.read_calls > BATCH
                assert batch.trace.started_ns <= batch.trace.finished_ns <= time.monotonic_ns()
            assert step == 6


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("read_threads", [0, 1, 2])
def test_a_batch_holds_until_the_next_but_one_is_taken(name: str, read_threads: int, dataset: DatasetSpec) -> None:
    spec, slots = make_spec(dataset, read_threads=read_threads), set[int]()
    for loader in started(name, spec):
        for epoch in (1, 2, 3):
            held: deque[tuple[Batch, list[bytes]]] = deque(maxlen=2)
            asked_ns = time.monotonic_ns()
            for batch in loader.batches("train", epoch, 5):
                assert read_threads or batch.trace.started_ns >= asked_ns, "without readers, nothing is read ahead"
                held.append((batch, delivered(batch)))
                slots.add(batch.trace.slot)
                time.sleep(0.01)  # readers go as far ahead as they may
                assert [delivered(kept) for kept, _ in held] == [taken for _, taken in held]
                asked_ns = time.monotonic_ns()
    assert len(slots) <= spec.slots


@pytest.mark.parametrize("name", ["pytorch", "threads"])
def test_batches_that_can_be_asked_for_come_whole_whatever_the_time_limit(name: str, dataset: DatasetSpec) -> None:
    spec = make_spec(dataset)
    for loader in started(name, spec):
        for epoch in (1, 2):
            batches = loader.batches("train", epoch, 6)
            assert isinstance(batches, TimedBatches)
            hashes = [next(batches).trace.sample_hash]  # the workers have begun
            while len(hashes) < 6:
                batch = batches.take(0.0 if len(hashes) % 2 else 1e-4)
                hashes += [] if batch is None else [batch.trace.sample_hash]
            with pytest.raises(StopIteration):
                batches.take(60)
            ids = [spec.phases["train"].plan.sample_ids(epoch, step) for step in range(1, 7)]
            assert hashes == [hash_samples(samples) for samples in ids]


@pytest.mark.parametrize("name", ["pytorch", "threads"])
def test_workers_that_are_late_are_not_waited_for_longer_than_the_time_limit(name: str, dataset: DatasetSpec) -> None:
    spec = make_spec(dataset, preprocess_time=Duration(mean=1 / BATCH), preprocess="sleep")
    for loader in started(name, spec):
        batches = loader.batches("train", 1, 3)
        assert isinstance(batches, TimedBatches)
        hashes = [next(batches).trace.sample_hash for _ in range(2)]  # the two workers' first
        assert batches.take(0) is None, "the next takes a second from then on"
        hashes += [next(batches).trace.sample_hash]
        assert hashes == [hash_samples(spec.phases["train"].plan.sample_ids(1, step)) for step in range(1, 4)]


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("resize", [8192, 60_000])
def test_a_crop_of_what_was_read_is_shipped(name: str, resize: int, dataset_for: Datasets) -> None:
    spec, found = make_spec(dataset_for(name), data_loader=name, resize=resize), Counter[bytes]()
    for loader in started(name, spec):
        for batch in loader.batches("train", 1, 6):
            found.update(delivered(batch))
    wanted = planned(spec, 1, 6)
    if name in IN_ORDER:
        assert found == wanted
        assert {len(crop) for crop in found} == {resize}, "padded where there is no more"
    trimmed, whole = (Counter(crop.rstrip(b"\0") for crop in crops.elements()) for crops in (found, wanted))
    assert trimmed == whole


@pytest.mark.parametrize("read_threads", [0, 2])
def test_tensors_cross_as_those_of_a_training_job(
    read_threads: int, dataset: DatasetSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, pinned = pytest.importorskip("torch"), Mock(side_effect=lambda tensor: tensor)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned(tensor))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    spec = make_spec(dataset, tensors=2, tensor_bytes=1000, read_threads=read_threads, pin_memory=read_threads > 0)
    phase = spec.phases["train"]
    for loader in started("pytorch", spec):
        for step, batch in enumerate(loader.batches("train", 1, 4), 1):
            data, labels = batch.data
            assert (data.shape, data.dtype, labels.shape) == ((BATCH, 1000), torch.uint8, (BATCH,))
            assert data.is_shared() == labels.is_shared() == (read_threads > 0)
            assert batch.trace.sample_hash == hash_samples(phase.plan.sample_ids(1, step))
            assert batch.trace.samples == BATCH
            assert batch.trace.app_bytes > 0
        assert (step, pinned.call_count) == (4, 8 if read_threads else 0)


@pytest.mark.parametrize("name", ALL)
def test_null_storage_has_the_same_batches_and_no_bytes(name: str, dataset_for: Datasets) -> None:
    spec = make_spec(dataset_for(name), data_loader=name)
    for loader in started(name, spec):
        traces = [batch.trace for batch in loader.batches("ceiling", 0, 9)]
        assert [trace.samples for trace in traces] == [BATCH] * 9
        assert sum(trace.app_bytes + trace.read_calls for trace in traces) == 0
        if name in (*IN_ORDER, "none"):
            assert traces[0].sample_hash == hash_samples(spec.phases["ceiling"].plan.sample_ids(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn"])  # the others of this file fork
def test_workers_started_in_any_way_deliver_the_same(context: str, dataset: DatasetSpec) -> None:
    spec = make_spec(dataset, multiprocessing_context=context, verify=True)
    for loader in started("pytorch", spec):
        hashes = [batch.trace.sample_hash for batch in loader.batches("train", 1, 6)]
    assert hashes == [hash_samples(spec.phases["train"].plan.sample_ids(1, step)) for step in range(1, 7)]


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("verify", [False, True])
def test_a_damaged_file_is_named(name: str, verify: bool, tmp_path: Path) -> None:
    spec = make_spec(make_dataset(tmp_path), verify=verify)
    victim = Path(spec.phases["train"].fetch.layout.path(11))
    data = bytearray(victim.read_bytes())
    data[9000] ^= 1
    victim.write_bytes(data if verify else data[:1000])
    for loader in started(name, spec):
        with pytest.raises(DatasetError, match=victim.name):
            list(loader.batches("train", 1, 6))


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_a_worker_fails_on_at_its_start_is_told(name: str, dataset: DatasetSpec) -> None:
    spec = make_spec(dataset)
    phase = spec.phases["train"]
    unknown = replace(
        phase,
        fetch=replace(
            phase.fetch, found=replace(phase.fetch.found, spec=replace(phase.fetch.dataset, format="sculpture"))
        ),
    )

    def read() -> None:
        with ExitStack() as stack:
            loader: Loader = find("dlemu.loaders", name, "Loader")(replace(spec, phases={"train": unknown}))
            stack.callback(loader.close)
            loader.start()
            list(loader.batches("train", 1, 1))

    with pytest.raises(DlemuError, match="sculpture"):
        read()


def test_a_killed_worker_is_explained(dataset: DatasetSpec) -> None:
    spec = make_spec(dataset)
    loader: Loader = find("dlemu.loaders", "pytorch", "Loader")(spec)
    others = set(psutil.Process().children())  # of other tests, such as a server
    loader.start()
    batches = loader.batches("ceiling", 0, 100_000)
    next(batches)
    (set(psutil.Process().children()) - others).pop().kill()
    with pytest.raises(RuntimeError) as caught:
        deque(batches, maxlen=0)
    explained = loader.explain(caught.value)
    loader.close()
    assert isinstance(explained, DlemuError)
    assert "worker" in str(explained)
    assert "killed" in str(explained).lower()
    assert loader.explain(RuntimeError("something else")) is None


def test_the_worker_of_an_epochs_first_batch_goes_before_the_others(dataset: DatasetSpec) -> None:
    own, before = os.getpriority(os.PRIO_PROCESS, 0), set(psutil.Process().children())
    for loader in started("pytorch", make_spec(dataset, nice=8)):
        workers = sorted(set(psutil.Process().children()) - before, key=lambda process: process.pid)
        assert [worker.nice() - own for worker in workers] == [2, 8]
        for epoch in (1, 2):
            assert [batch.trace.worker for batch in loader.batches("train", epoch, 3)] == [0, 1, 0]


def test_preprocessing_takes_its_time_and_is_told(dataset: DatasetSpec) -> None:
    spec = make_spec(dataset, preprocess_time=Duration(mean=0.004), preprocess="sleep")
    for loader in started("threads", spec):
        traces = [batch.trace for batch in loader.batches("train", 1, 3)]
    assert all(trace.decode_ns >= BATCH * 4_000_000 for trace in traces)
    assert sum(trace.preprocess_cpu_ns for trace in traces) == 0


@pytest.mark.parametrize("name", ["pytorch", "threads"])
def test_preprocessing_burns_the_cpu_of_the_worker(name: str, dataset: DatasetSpec) -> None:
    """As much as is asked, by the worker's own clock; and that it was preprocessing is noted beside it."""
    measured = Duration(type="empirical", seconds=(0.001, 0.002, 0.003, 0.01), mean=0.003)
    spec = make_spec(dataset, preprocess_time=measured, read_threads=1)
    for loader in started(name, spec):
        traces = [batch.trace for epoch in (1, 2) for batch in loader.batches("train", epoch, 6)]
        assert not any(batch.trace.preprocess_cpu_ns for batch in loader.batches("ceiling", 0, 2))
    burned, samples = sum(trace.preprocess_cpu_ns for trace in traces), 12 * BATCH
    # The times of the 48 samples are the first of 1024 that are spread evenly.
    assert burned == pytest.approx(samples * 3_000_000, rel=0.3)
    assert burned <= sum(trace.cpu_ns for trace in traces) <= 1.5 * burned
    assert len({round(trace.preprocess_cpu_ns, -4) for trace in traces}) > 3
