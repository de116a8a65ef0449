"""tfrecord files through TensorFlow's own reader: the planned samples, their bytes, and faults with a file's name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import DatasetError
from datagen.fetch import FetchSpec
from datagen.layout import layouts
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import NULL_STORAGE
from dlemu.config.schema import Duration, Reader
from dlemu.jobs.training.plan import planned_dataset
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.loaders.loader_base import Batch, Interleave, LoaderSpec, Phase
from dlemu.metrics.cache import each_sample_once
from dlemu.plan.samples import RankPlan
from dlemu.plan.streams import StreamPlan
from tests.plan.plans import make_stream_plan

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="the extra `tensorflow` is not installed"),
]

BATCH, FILES, SAMPLES, RECORD = 5, 7, 11, 9000
PERIOD = 251


def image(sample: int) -> bytes:
    return sample.to_bytes(4, "big") + bytes(range(PERIOD)) * ((RECORD - 4) // PERIOD)


def example(sample: int) -> bytes:
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image(sample)])),
        "size": tf.train.Feature(int64_list=tf.train.Int64List(value=[RECORD])),
    }
    made: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return made


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetSpec:
    return DatasetSpec(
        data_folder=str(tmp_path),
        format="tfrecord",
        num_files_train=FILES,
        num_samples_per_file=SAMPLES,
        record_dims=(1, RECORD),
    )


def write(dataset: DatasetSpec) -> None:
    """Make the files by TensorFlow's own writer, in the test's own process."""
    layout = layouts(dataset)[0]
    os.mkdir(layout.folder)
    for file in range(FILES):
        write_records(layout.path(file), [example(file * SAMPLES + index) for index in range(SAMPLES)])


def write_records(path: str, records: list[bytes]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as out:
        for record in records:
            out.write(record)


make_plan = partial(make_stream_plan, num_files=FILES, num_samples_per_file=SAMPLES, batch_size=BATCH, ranks=1, seed=3)


def make_spec(
    dataset: DatasetSpec, plan: StreamPlan, rank: int = 0, files_ahead: int = 0, **settings: Any
) -> LoaderSpec:
    fetch = FetchSpec(planned_dataset(dataset), layouts(dataset)[0])
    ceiling = Phase(replace(fetch, storage=NULL_STORAGE), RankPlan(plan, rank, endless=True), BATCH)
    common: dict[str, Any] = {"computation_threads": 2, "transfer_size": 4096, "shuffle_size": 20, "nice": 0}
    return LoaderSpec(
        rank=rank,
        phases={"train": Phase(fetch, RankPlan(plan, rank), BATCH), "ceiling": ceiling},
        reader=Reader(**({"sample_shuffle": "seed"} | common | settings), read_threads=plan.cycle),
        interleave=Interleave(files=plan.cycle, block_length=plan.block_length, files_ahead=files_ahead),
        seed=3,
    )


def batches(spec: LoaderSpec, steps: int, epoch: int = 1, phase: str = "train") -> Iterator[Batch]:
    from dlemu.loaders.tensorflow import Loader

    loader = Loader(spec)
    loader.start()
    yield from loader.batches(phase, epoch, steps)
    loader.close()


def sample_of(data: Any) -> int:
    return int.from_bytes(bytes(data.numpy())[:4], "big")


@pytest.mark.parametrize(("ranks", "cycle"), [(1, 1), (3, 4), (9, 4)])
def test_each_rank_gets_exactly_its_planned_samples(ranks: int, cycle: int, dataset: DatasetSpec) -> None:
    write(dataset)
    plan = make_plan(ranks=ranks, cycle=cycle, batch_size=BATCH)
    steps = plan.steps_per_epoch
    rows = []
    for rank in range(ranks):
        found: list[int] = []
        for batch in batches(make_spec(dataset, plan, rank), steps):
            assert all(data.numpy() == image(sample_of(data)) for data in batch.data)
            found += [sample_of(data) for data in batch.data]
            rows.append((batch.trace.samples, batch.trace.sample_hash))
        planned = [int(one) for step in range(1, steps + 1) for one in RankPlan(plan, rank).sample_ids(1, step)]
        assert Counter(found) == Counter(planned)
        assert ranks > 1 or found != planned, "the window shuffles"
    logged = np.zeros(len(rows), STEP_DTYPE)
    logged["samples"], logged["sample_hash"] = zip(*rows, strict=True)
    assert each_sample_once(plan, 1, steps, logged) is True


@pytest.mark.parametrize("files_ahead", [0, 5])
@pytest.mark.parametrize(("cycle", "block_length"), [(1, 4), (3, 4), (2, 40)])
def test_without_a_shuffle_the_order_is_the_planned_one(
    cycle: int, block_length: int, files_ahead: int, dataset: DatasetSpec
) -> None:
    write(dataset)
    plan = make_plan(sample_shuffle=False, cycle=cycle, block_length=block_length)
    spec = make_spec(dataset, plan, sample_shuffle="off", files_ahead=files_ahead)
    for step, batch in enumerate(batches(spec, 15), 1):
        assert [sample_of(data) for data in batch.data] == RankPlan(plan, 0).sample_ids(1, step).tolist()


@pytest.mark.parametrize("ranks", [1, 9])
def test_the_bytes_of_an_epoch_are_those_of_the_files(ranks: int, dataset: DatasetSpec) -> None:
    write(dataset)
    plan = make_plan(ranks=ranks, batch_size=1)
    spec = make_spec(dataset, plan)
    one_by_one = replace(spec, phases={"train": replace(spec.phases["train"], batch_size=1)})
    traces = [batch.trace for batch in batches(one_by_one, plan.steps_per_epoch)]
    layout = layouts(dataset)[0]
    whole = sum(os.path.getsize(layout.path(file)) for file in range(FILES))
    # Records that do not go round all ranks are left over: S modulo R of each file.
    kept = SAMPLES if ranks == 1 else SAMPLES // ranks * ranks
    assert sum(trace.app_bytes for trace in traces) * SAMPLES == whole * kept
    assert all(trace.started_ns <= trace.finished_ns for trace in traces)


@pytest.mark.parametrize("threads", [1, 2])
def test_null_storage_parses_all_the_same(dataset: DatasetSpec, threads: int) -> None:
    write(dataset)
    made = list(batches(make_spec(dataset, make_plan(cycle=threads)), 40, epoch=0, phase="ceiling"))
    assert all(batch.trace.decode_ns > 0 for batch in made)
    assert {len(image) for batch in made for image in batch.data.numpy()} == {RECORD}


def test_preprocessing_counts_as_decoding(dataset: DatasetSpec) -> None:
    write(dataset)
    time = Duration(mean=0.002)
    made = list(batches(make_spec(dataset, make_plan(), preprocess_time=time), 4))
    assert all(batch.trace.decode_ns >= BATCH * 2_000_000 for batch in made)
    # A thread's clock counts what the hypervisor took from it: at most, then, what decoding took.
    assert all(BATCH * 2_000_000 <= batch.trace.preprocess_cpu_ns <= batch.trace.decode_ns for batch in made)
    sleeping = make_spec(dataset, make_plan(), preprocess_time=time, preprocess="sleep")
    assert not next(batches(sleeping, 1)).trace.preprocess_cpu_ns


def flip(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[20_000] ^= 1
    Path(path).write_bytes(data)


FAULTS: dict[str, Callable[[str], object]] = {
    "gone": os.unlink,
    "can't read record 10": lambda path: os.truncate(path, os.path.getsize(path) - 3000),
    "can't read record 2": flip,
    "holds 1 records, not 11": lambda path: write_records(path, [example(0)]),
    "can't read record 0": lambda path: write_records(path, [b"no Example"] * SAMPLES),
}


@pytest.mark.parametrize("said", FAULTS)
def test_a_damaged_file_is_named(said: str, dataset: DatasetSpec) -> None:
    write(dataset)
    victim = layouts(dataset)[0].path(4)
    FAULTS[said](victim)
    with pytest.raises(DatasetError, match=f"{os.path.basename(victim)}: .*{said}.*dlemu datagen"):
        list(batches(make_spec(dataset, make_plan()), 15))
    own = make_spec(replace(dataset, source="folder"), make_plan())
    if said == "can't read record 0":  # one's own records are samples as they are
        assert len(list(batches(own, 15))) == 15
        return
    with pytest.raises(DatasetError, match="the file is yours: restore it") as caught:
        list(batches(own, 15))
    assert "datagen" not in str(caught.value)
