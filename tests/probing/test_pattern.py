"""A workload's pattern at rising numbers of readers: which numbers are measured, for how long, and what counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datagen.errors import SpaceError
from datagen.spec import DatasetSpec
from dlemu.config.duration import Duration
from dlemu.config.schema import Reader
from dlemu.jobs.training import pattern, scaling
from dlemu.jobs.training.pattern import (
    ENDLESS,
    LEVEL_SECONDS,
    MAX_LEVEL_SECONDS,
    MAX_REPEAT_SECONDS,
    MAX_SECONDS,
    READ_DTYPE,
    SETTLE_SECONDS,
    Level,
    ReadRows,
    fewest_at_full_speed,
    judge_level,
    reading_spec,
    repeat_seconds,
)
from tests.runs import SAMPLE_BYTES, make_job

SECOND = 1_000_000_000


def reads(*each: tuple[float, float, int], reader: int = 0, cpu_seconds: float = 0.0) -> ReadRows:
    """Reads of one reader: begin and end in seconds, and bytes."""
    rows = np.zeros(len(each), READ_DTYPE)
    rows["begin_ns"], rows["end_ns"] = (np.array([row[place] for row in each]) * SECOND for place in (0, 1))
    rows["app_bytes"], rows["reader"], rows["cpu_ns"] = [row[2] for row in each], reader, cpu_seconds * SECOND
    return rows


def steady(mb_per_second: float, until: float, *, reader: int = 0, size_bytes: int = 1_000_000) -> ReadRows:
    took = size_bytes / 1e6 / mb_per_second
    edges = np.arange(0, until + took / 2, took)
    return reads(*((begin, begin + took, size_bytes) for begin in edges[:-1]), reader=reader)


def level(
    readers: int,
    mb_per_second: float,
    *,
    seconds: float = 2.0,
    half_width_percent: float = 0.5,
    read_seconds: float = 0.01,
) -> Level:
    rows = reads((0, read_seconds, 1_000_000))
    return Level(readers, seconds, rows, mb_per_second, half_width_percent)


def test_a_level_is_its_bytes_by_its_time_of_all_readers() -> None:
    rows = np.concatenate([steady(100, 3.0, reader=0), steady(50, 3.0, reader=1)])
    found = judge_level(rows, 2, 0, 2.0)
    assert (found.readers, found.seconds) == pytest.approx((2, 2.0))
    assert found.mb_per_second == pytest.approx(150, rel=1e-9)
    assert found.half_width_percent < 0.1, "no window had more than another"
    assert len(found.rows) == len(rows)


def test_of_a_read_that_is_longer_than_the_level_its_part_in_it_counts() -> None:
    whole = judge_level(reads((0, 4, 4_000_000)), 1, 0, 2.0)
    assert (whole.seconds, whole.mb_per_second) == pytest.approx((2.0, 1.0))
    later = judge_level(reads((10, 14, 4_000_000)), 1, 10 * SECOND, 2.0)
    assert later.mb_per_second == pytest.approx(1.0), "it begins when the readers did"


def test_a_level_ends_with_the_first_reader_that_has_nothing_more_to_read() -> None:
    """What the others got once they were fewer says nothing of so many."""
    rows = np.concatenate([steady(100, 1.5, reader=0), steady(100, 2.5, reader=1)])
    found = judge_level(rows, 2, 0, 2.0)
    assert found.seconds == pytest.approx(1.5 - SETTLE_SECONDS)
    assert found.mb_per_second == pytest.approx(200)
    idle = judge_level(rows, 3, 0, 2.0)
    assert idle.seconds == pytest.approx(2.0), "the third had nothing to read at all"


def test_of_a_dataset_that_was_read_too_soon_the_warm_up_does_not_count_either() -> None:
    """A throttle that was idle lets a first burst pass: in a level of half a second it is a fifth of all."""
    burst = np.concatenate([reads(*((0, 0.1, 30_000_000),) * 2), steady(100, 0.6)[10:]])
    found = judge_level(burst, 1, 0, 2.0)
    assert found.mb_per_second == pytest.approx(100, rel=0.02)
    assert found.seconds == pytest.approx(0.4, abs=0.07)
    at_once = judge_level(reads((0.1, 0.1, 10**6)), 1, 0, 2.0)
    assert np.isfinite([at_once.seconds, at_once.mb_per_second]).all()
    with pytest.raises(SpaceError, match="too small for this many readers"):
        judge_level(np.zeros(0, READ_DTYPE), 4, 0, 2.0)


def test_the_fewest_readers_that_get_about_all_are_enough() -> None:
    assert fewest_at_full_speed([level(8, 101), level(1, 50), level(2, 96), level(4, 100)]) == 2
    assert fewest_at_full_speed([level(1, 50), level(2, 95), level(4, 100.1)]) == 4


def test_a_pass_is_as_long_as_its_interval_wants() -> None:
    """Four times as wide as wanted: sixteen times the time, over two passes."""
    assert repeat_seconds(level(4, 100, half_width_percent=4.0), 4) == pytest.approx(2 * 16 / 2)
    assert repeat_seconds(level(4, 100, half_width_percent=0.5), 4) == LEVEL_SECONDS
    assert repeat_seconds(level(4, 100, half_width_percent=50.0), 4) == MAX_REPEAT_SECONDS
    slow = level(2, 100, half_width_percent=0.5, read_seconds=1.0)
    assert repeat_seconds(slow, 2) == pytest.approx(6), "six reads of each"
    assert repeat_seconds(slow, 8) == pytest.approx(24), "each waits for four times as many"
    assert repeat_seconds(slow, 1) == pytest.approx(6)


class Storage:
    """So many readers get so much of it, on a clock that only its levels move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, speed: Callable[[int], float], **reads: float):
        self.now, self.asked, self.evicted = 0.0, list[tuple[int, float]](), list[bool]()
        self._speed, self._reads = speed, reads
        monkeypatch.setattr(pattern, "_level", self._level)
        monkeypatch.setattr(pattern, "evict", lambda job, first, last, *, write_first: self.evicted.append(write_first))
        monkeypatch.setattr(pattern, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.room(monkeypatch, 1 << 40)

    def room(self, monkeypatch: pytest.MonkeyPatch, available_bytes: int) -> None:
        monkeypatch.setattr(pattern, "host_memory", lambda: SimpleNamespace(available_bytes=available_bytes))

    def _level(self, job: Any, spec: Any, readers: int, steps: int, seconds: float) -> Level:
        self.asked.append((readers, seconds))
        self.now += SETTLE_SECONDS + seconds
        return level(readers, self._speed(readers), seconds=seconds, **self._reads)

    def measured(self, *levels: int, steps: int = 1000, **words: Any) -> list[int]:
        """The readers of the levels that a request of a dataset of so many batches of 4 is answered by."""
        job = make_job(ranks=1, steps=steps)
        return [one.readers for one in pattern.measure_levels(job, levels=levels, **({"evicts": False} | words))]


def test_readers_are_doubled_until_twice_they_got_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, lambda readers: min(400.0, 100.0 * readers))
    assert storage.measured() == [1, 2, 4, 8, 16]
    slowly = Storage(monkeypatch, lambda readers: 100 * 1.04 ** np.log2(readers))
    assert slowly.measured() == [1, 2, 4, 8, 16, 32, 64, 128, 256], "4 % more each time is more"
    assert slowly.measured(steps=100) == [1, 2, 4, 8, 16, 32], "each reader has two reads at least"
    dips = Storage(monkeypatch, lambda readers: {2: 90.0, 4: 200.0, 8: 190.0, 16: 202.0}.get(readers, 100.0))
    assert dips.measured() == [1, 2, 4, 8, 16], "of the most that any number got, two in a row"


def test_readers_hold_a_quarter_of_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, lambda readers: 100.0 * readers)
    slot_bytes = reading_spec(make_job(ranks=1))[0].slot_bytes
    storage.room(monkeypatch, 4 * 9 * slot_bytes)
    assert storage.measured() == [1, 2, 4, 8]
    storage.room(monkeypatch, 0)
    assert storage.measured() == [1]


def test_levels_that_are_given_are_those_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, lambda readers: 100.0)
    assert storage.measured(3, 1, 7) == [3, 1, 7]
    assert storage.evicted == []


def test_pages_are_dropped_before_each_level_and_written_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, lambda readers: 100.0)
    assert storage.measured(1, 2, 4, evicts=True) == [1, 2, 4]
    assert storage.evicted == [True, False, False]


def test_a_level_lasts_for_some_reads_and_longer_where_readers_share(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Storage(monkeypatch, lambda readers: 100.0 * readers, read_seconds=0.5)
    alone.measured(1, 2, 4)
    assert alone.asked == [(1, LEVEL_SECONDS), (2, 3.0), (4, 3.0)]
    shared = Storage(monkeypatch, lambda readers: 100.0, read_seconds=0.5)
    shared.measured(1, 2, 4)
    assert shared.asked == [(1, LEVEL_SECONDS), (2, 3.0), (4, 6.0)]
    slow = Storage(monkeypatch, lambda readers: 100.0, read_seconds=60.0)
    slow.measured(1, 2)
    assert slow.asked == [(1, LEVEL_SECONDS), (2, MAX_LEVEL_SECONDS)]


def test_all_levels_together_keep_to_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, lambda readers: 100.0 * readers, read_seconds=3.0)
    assert storage.measured(repeat=0)[-2:] != [8, 8], "there is no time for all of them"
    assert 0.7 * MAX_SECONDS < storage.now <= MAX_SECONDS + 4 * SETTLE_SECONDS


def test_the_level_that_matters_is_measured_twice_more(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(monkeypatch, lambda readers: min(400.0, 100.0 * readers))
    assert storage.measured(repeat=0) == [1, 2, 4, 8, 16, 4, 4]
    assert storage.measured(repeat=6) == [1, 2, 4, 8, 16, 6, 6]
    assert storage.measured(repeat=600) == [1, 2, 4, 8, 16, 256, 256]
    unsure = Storage(monkeypatch, lambda readers: 100.0, half_width_percent=50.0)
    assert unsure.measured(1, 2, repeat=2, most_seconds=11.0) == [1, 2, 2, 2]
    shared = [seconds for _, seconds in unsure.asked[2:]]
    assert shared == pytest.approx([3.0, 2.5]), "they share what time is left"
    short = Storage(monkeypatch, lambda readers: 100.0)
    assert short.measured(1, 2, repeat=2, most_seconds=6.0) == [1, 2], "no time is left"


def test_a_read_is_a_batch_or_as_many_samples_as_are_large_enough() -> None:
    spec, samples = reading_spec(make_job(ranks=1))
    assert samples == 4, "a batch"
    assert spec.phases["train"].batch_size == 4
    large = make_job(ranks=1, steps=16, reader=Reader(batch_size=scaling.READ_BYTES // SAMPLE_BYTES * 3))
    spec, samples = reading_spec(large)
    assert samples == scaling.READ_BYTES // SAMPLE_BYTES
    assert spec.phases["train"].batch_size == samples
    assert set(spec.phases) == {"train"}
    decoding = make_job(ranks=1, reader=Reader(batch_size=4, preprocess_time=Duration(mean=1.0)))
    assert reading_spec(decoding)[0].reader.preprocess_time == Duration()


def test_files_that_a_loader_reads_itself_are_read_by_dlemus_own_engine() -> None:
    dataset = DatasetSpec(data_folder="x", format="tfrecord", num_files_train=48, record_length_bytes=SAMPLE_BYTES)
    reader = Reader(data_loader="tensorflow", batch_size=4)
    job = make_job(ranks=1, dataset=dataset, reader=reader)
    assert job.read_by_loader
    assert reading_spec(job)[0].phases["train"].fetch.engine == "matched"


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 76),  # of 100 MB a tenth, by 128 KiB, a batch of one sample
        ({"sample_shuffle": "off"}, 25_000),  # neighbours are read one after the other, each once
        ({"odirect": True}, 25_000),
        ({"num_samples_per_file": 1}, ENDLESS),  # each file is dropped from memory once read
        ({"record_length_bytes": 140_000}, 25_000),
    ],
)
def test_a_level_reads_no_more_than_leaves_the_page_cache_cold(changes: dict[str, Any], most: int) -> None:
    """What the kernel reads around a sample of 4 kB serves others later: a level of all would measure memory."""
    changes = dict(changes)
    of_reader = {key: changes.pop(key) for key in ("sample_shuffle", "odirect") if key in changes}
    dataset = replace(DatasetSpec(data_folder="x", num_samples_per_file=100, record_length_bytes=4000), **changes)
    dataset = replace(dataset, num_files_train=25_000 // dataset.num_samples_per_file)
    reader = replace(Reader(batch_size=1, sample_shuffle="seed"), **of_reader)
    job = make_job(ranks=1, dataset=dataset, reader=reader)
    job = replace(job, dataset=replace(job.dataset, total_bytes=int(25_000 * dataset.record_length_bytes)))
    assert pattern._max_reads(job, samples_per_read=1, readers=2) == most


@pytest.mark.parametrize(("streams", "reads"), [(False, [[1, 3, 5], [2, 4, 6]]), (True, [[1, 2, 3], [4, 5, 6]])])
def test_readers_share_an_epoch_as_a_loader_s_workers_do(
    streams: bool, reads: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(ranks=1, steps=6, reader=Reader(batch_size=4, worker_streams=streams))
    spec, _ = reading_spec(job)
    made: list[int] = []

    def make(phase: str, epoch: int, step: int, slot: int, out: memoryview) -> SimpleNamespace:
        made.append(step)
        names = ("started_ns", "finished_ns", "app_bytes", "samples", "decode_ns", "cpu_ns")
        return SimpleNamespace(**dict.fromkeys(names, 0))

    monkeypatch.setattr(pattern, "BatchMaker", lambda *_: SimpleNamespace(make=make))
    monkeypatch.setattr("os.nice", lambda _: None)
    for number, wanted in enumerate(reads):
        made.clear()
        comm: Any = SimpleNamespace(rank=number, all_reduce_max=lambda value: value)
        pattern._read(comm, job, spec, readers=2, max_reads=6, seconds=60.0)
        assert made == wanted


def test_each_sample_of_the_dataset_is_read_once() -> None:
    job = make_job(ranks=1, steps=6)
    plan = reading_spec(job)[0].phases["train"].plan
    steps = np.arange(1, 7)
    samples = plan.batches(5, steps)
    assert samples.shape == (6, 4)
    assert sorted(samples.ravel().tolist()) == list(range(24))
    assert samples[0].tolist() == job.train_plan.samples_at(5, np.arange(4)).tolist(), "from the first on"
    assert plan.sample_ids(5, 3).tolist() == samples[2].tolist()
    assert plan.batches(6, steps).tolist() != samples.tolist(), "an order of each epoch"
    assert plan.runs(5, steps) is None


@pytest.mark.parametrize(
    ("streams", "readers", "reads"),
    [
        (False, 4, {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8]}),
        (True, 4, {0: [1, 3], 1: [2, 4], 2: [5, 7], 3: [6, 8]}),
        (True, 1, {0: [1, 3, 5, 7]}),
    ],
)
def test_in_trials_no_row_group_is_read_by_two_readers(
    streams: bool, readers: int, reads: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DatasetSpec(format="parquet", num_files_train=1, num_samples_per_file=32)
    job = make_job(ranks=1, steps=8, dataset=data, reader=Reader(batch_size=4, read_threads=2, worker_streams=streams))
    made: dict[int, list[int]] = {}

    def maker_of(_: object, reader: int) -> SimpleNamespace:
        def make(phase: str, epoch: int, step: int, slot: int, out: memoryview) -> SimpleNamespace:
            made.setdefault(reader, []).append(step)
            return SimpleNamespace(app_bytes=1)

        return SimpleNamespace(make=make)

    monkeypatch.setattr(scaling, "BatchMaker", maker_of)
    assert scaling._read(job, 0, 1, readers)[0] == sum(map(len, reads.values()))
    assert made == reads
