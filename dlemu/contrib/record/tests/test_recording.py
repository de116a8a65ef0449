"""From rows to a recording: what counts, what computes, and what is told apart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from datagen.errors import UserError
from dlemu.contrib.record.data_seen import dataset_of
from dlemu.contrib.record.recipe import workload_of
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.rows import ProcessRows, Step
from dlemu.contrib.record.tests.made_rows import MS, Trainer, steady


def test_a_slow_source_does_not_leak_into_what_a_step_computes() -> None:
    fast, slow = Trainer(), Trainer()
    steady(fast, 60, wait_ms=0.2, body_ms=30)
    steady(slow, 60, wait_ms=90, body_ms=30)
    recordings = [analyse(one.processes, 10) for one in (fast, slow)]
    assert [one.computation.mean for one in recordings] == pytest.approx([0.030, 0.030], rel=0.001)
    assert [one.computation_from for one in recordings] == ["ready steps", "all steps"]
    assert [one.samples_per_second for one in recordings] == pytest.approx([8 / 0.0302, 8 / 0.120], rel=0.001)


def test_evaluation_within_and_between_epochs_and_a_sanity_check_are_left_out() -> None:
    plain, other = Trainer(), Trainer()
    steady(plain, 60, wait_ms=1, body_ms=20)
    sanity = other.begin()
    for _ in range(2):
        other.batch(sanity, 5, 3, steps=0, grad=False)
    other.over(sanity)
    training = other.begin()
    for place in range(60):
        other.batch(training, 1, 20)
        if place == 30:
            evaluation = other.begin()
            for _ in range(9):
                other.batch(evaluation, 50, 70, steps=0, grad=False)
            other.over(evaluation)
    other.over(training)
    expected, found = (analyse(one.processes, 10) for one in (plain, other))
    assert found.steps == expected.steps
    assert found.computation.mean == pytest.approx(expected.computation.mean)
    assert found.samples_per_second == pytest.approx(expected.samples_per_second)


def test_batches_that_share_a_step_are_counted_whether_they_are_asked_for_one_by_one_or_at_once() -> None:
    by_one, at_once = Trainer(), Trainer()
    number = by_one.begin()
    for place in range(80):
        by_one.batch(number, 0.1, 25, steps=int(place % 4 == 3))
    by_one.over(number)
    number = at_once.begin()
    for place in range(80):  # as HF's Trainer does: the batches of a group first, then all of its computing
        at_once.batch(number, 0.1, 100 if place % 4 == 3 else 0, steps=int(place % 4 == 3))
    at_once.over(number)
    for trainer in (by_one, at_once):
        recording = analyse(trainer.processes, 8)
        assert recording.gradient_accumulation_steps == 4
        assert recording.computation.mean == pytest.approx(0.025, rel=0.01)
        assert recording.computation.quantiles[0] == pytest.approx(0.025, rel=0.01)


def test_loaders_that_one_can_not_stand_for_are_refused() -> None:
    streams, following = Trainer(), Trainer()
    numbers = [streams.begin() for _ in range(2)]
    streams.rows.passes[-1].iterable = True
    for _ in range(40):
        for number in numbers:
            streams.batch(number, 0.1, 25)
    assert any("several loaders" in problem for problem in analyse(streams.processes, 4).problems)
    for batch in (8, 16):
        steady(following, 40, wait_ms=0.1, body_ms=25)
        following.rows.passes[-1].batch = batch
    assert any("several loaders" in problem for problem in analyse(following.processes, 4).problems)


def test_a_dispatcher_reads_on_rank_0_for_all() -> None:
    """As Accelerate's: rank 0 asks for a batch a rank, puts them together, and sends each its part."""
    first, second = Trainer(ranks=2), Trainer(pid=500, ranks=2)
    number = first.begin()
    for place in range(80):
        first.batch(number, 0.1, 40 if place % 2 else 0, steps=place % 2)
    first.over(number)
    second.rows.steps = list(first.rows.steps)
    recording = analyse([*first.processes, second.rows], 10)
    assert (recording.ranks, recording.loaders) == (2, 1)
    assert recording.batch_size == 8
    tree = workload_of(recording, None, engine="matched")
    assert (tree["ranks"], tree["reader"]["batch_size"]) == (1, 8)
    rate = tree["reader"]["batch_size"] / (
        recording.computation.mean + recording.parts.step - recording.parts.computing
    )
    assert rate == pytest.approx(recording.samples_per_second, rel=0.01), "all ranks' samples"
    assert "one rank reads for 2" in " ".join(recording.notes)


def test_the_accelerators_own_clock_goes_before_the_hosts() -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=0.1, body_ms=30, device_ms=27.5)
    recording = analyse(trainer.processes, 10)
    assert recording.computation_from == "device"
    assert recording.computation.mean == pytest.approx(0.0275)


def test_checkpoints_are_no_computation() -> None:
    trainer = Trainer()
    number = trainer.begin()
    for place in range(60):
        trainer.batch(number, 0.1, 30, save_ms=400 if place in (19, 39) else 0)
    trainer.over(number)
    recording = analyse(trainer.processes, 10)
    assert recording.computation.mean == pytest.approx(0.030, rel=0.001)
    assert recording.saves is not None
    assert (recording.saves.bytes, recording.saves.batches_between) == (4000, 20)
    assert recording.saves.seconds == pytest.approx(0.4)


def test_waits_are_shared_out_by_what_the_worker_did() -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=10, body_ms=20, blocked_ms=6)
    parts = analyse(trainer.processes, 10).parts
    found = (parts.computing, parts.storage, parts.preprocessing, parts.hand_over)
    assert found == pytest.approx((0.020, 0.006, 0.002, 0.002), rel=0.001), "making it takes 8 of 10 ms"
    assert parts.step == pytest.approx(0.030, rel=0.001)


def test_a_busy_host_does_not_leak_into_what_a_step_computes() -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=0.1, body_ms=36)
    for place, batch in enumerate(trainer.rows.batches):
        batch.queue0, batch.queue1 = place * 6 * MS, place * 6 * MS
    trainer.rows.overs[0].queue0 = 60 * 6 * MS
    recording = analyse(trainer.processes, 10)
    assert recording.computation.mean == pytest.approx(0.030, rel=0.001)
    assert recording.parts.cpu_queue == pytest.approx(0.006)
    assert recording.parts.step == pytest.approx(0.0361, rel=0.001)


def test_bytes_that_the_hook_did_not_see_lower_the_coverage() -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=0.1, body_ms=20)
    assert analyse(trainer.processes, 10).coverage_percent == 100
    for made, fetch in enumerate(trainer.worker.fetches):
        fetch.process_read = made * 20_000  # threads of a client of its own
    assert analyse(trainer.processes, 10).coverage_percent == pytest.approx(100 * 8000 / (20_000 - 4096))


@pytest.mark.parametrize(
    ("fetch", "samples", "found"),
    [  # of a dataset whose items are batches of 2048; the batch, the bytes and number of its samples
        ({"items": 1, "n": 2048, "calls": 1}, 800, (1, 8000, 800)),  # rows in one piece
        ({"items": 1, "n": 2048, "calls": 30, "opens": 0}, 800, (1, 8000, 800)),  # in pieces of a buffer
        ({"items": 1, "n": 2048, "calls": 9, "read": 9, "maps": 1, "map_bytes": 8000}, 800, (1, 8009, 800)),
        ({"items": 1, "n": 2048, "calls": 2048}, 800, (2048, 8000 / 2048, 800 * 2048)),  # here and there
        ({"items": 1, "n": 2048, "calls": 9, "read": 9, "maps": 2048, "map_bytes": 8000}, 1, (2048, 3.91, 2048)),
        ({"items": 2048, "n": 2048, "calls": 1}, 800, (2048, 8000 / 2048, 800)),  # a sampler's list of indexes
        ({"items": None, "n": 2048, "calls": 1}, None, (2048, 8000 / 2048, None)),  # a stream
    ],
)
def test_a_batch_that_a_dataset_makes_is_a_sample_if_it_is_read_in_one_piece(
    fetch: dict[str, int | None], samples: int | None, found: tuple[int, float, int | None]
) -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=0.1, body_ms=20)
    trainer.rows.passes[0].samples = samples
    for one in trainer.worker.fetches:
        for name, value in fetch.items():
            setattr(one, name, value)
    recording = analyse(trainer.processes, 10)
    assert (recording.batch_size, recording.loading.samples) == (found[0], found[2])
    assert recording.read_bytes_per_sample == pytest.approx(found[1], rel=0.01)
    assert recording.mapped == ("maps" in fetch)
    assert any("of 2048 samples by itself" in note for note in recording.notes) == (found[0] == 1)


def test_a_label_out_of_a_mapped_array_is_not_the_sample() -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=0.1, body_ms=20)
    for fetch in trainer.worker.fetches:
        fetch.map_bytes = 800
    assert not analyse(trainer.processes, 10).mapped


@pytest.mark.parametrize(
    ("read", "calls", "device", "mapped_files", "mapped", "read_per_sample"),
    [
        (20, 0, 0, 0, False, 0.0),  # all in memory: the recorder's own bytes
        (9000, 0, 0, 0, False, 0.0),  # and another thread's, that hands tensors over
        (20, 0, 4096, 0, True, 0.0),  # pages of files that are mapped for one sample
        (20, 0, 0, 1, True, 0.0),  # Arrow's, in the page cache
        (200, 1, 64_000, 1, True, 0.0),
        (1840, 1, 0, 0, False, 230.0),  # compressed lines
        (1840, 1, 65_536, 0, False, 230.0),  # whose files are read ahead
        (8000, 16, 0, 1, False, 1000.0),  # records that calls read, beside a mapped index
    ],
)
def test_files_are_mapped_where_calls_do_not_read_what_a_sample_has(
    read: int, calls: int, device: int, mapped_files: int, mapped: bool, read_per_sample: float, tmp_path: Path
) -> None:
    trainer = Trainer()
    steady(trainer, 60, wait_ms=0.1, body_ms=20)
    for fetch in trainer.worker.fetches:
        fetch.read, fetch.calls, fetch.device, fetch.mapped, fetch.opens = read, calls, device, mapped_files, 0
    trainer.worker.fetches[0].opens = calls
    (tmp_path / "samples.bin").write_bytes(bytes(800_000))
    recording, _ = dataset_of(Counter([str(tmp_path / "samples.bin")]), analyse(trainer.processes, 10))
    assert (recording.mapped, recording.read_bytes_per_sample) == (mapped, read_per_sample)


@pytest.mark.parametrize(
    ("files", "batches_of_a_worker", "read_per_sample"),
    [([], 1, 0.0), ([], 9, 0.0), (["/data/a.h5"], 9, 0.0), (["/data/a.h5"], 1, 104.0)],
)
def test_libraries_that_workers_load_with_their_first_batch_are_no_data(
    files: list[str], batches_of_a_worker: int, read_per_sample: float
) -> None:
    """Workers are forked for each pass; of a file that one has open, a single batch may have been all that it read."""
    trainer = Trainer()
    steady(trainer, 72, wait_ms=0.1, body_ms=20)
    worker = trainer.worker
    made, worker.fetches = worker.fetches, []
    workers = [
        ProcessRows(worker.process, fetches=made[at : at + batches_of_a_worker])
        for at in range(0, 72, batches_of_a_worker)
    ]
    for place, rows in enumerate(workers):
        rows.process = replace(rows.process, pid=300 + place)
        for fetch in rows.fetches:
            fetch.read, fetch.calls, fetch.opens, fetch.files = 20, 0, 0, []
        rows.fetches[0].read, rows.fetches[0].calls, rows.fetches[0].files = 832, 1, files
    trainer.rows.batches[0].pids = [rows.process.pid for rows in workers]
    assert analyse([trainer.rows, *workers], 10).read_bytes_per_sample == read_per_sample


def test_what_holds_no_training_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"left no rows.*import dlemu\.contrib\.record"):
        analyse([], 10)
    trainer = Trainer()
    trainer.now = 5 * MS
    trainer.batch(trainer.begin(), 1, 1)
    with pytest.raises(UserError, match=r"1 batches .* after the first 10, which are left out as warm-up"):
        analyse(trainer.processes, 10)
    trainer.rows.steps.clear()
    with pytest.raises(UserError, match=r"1 batches .* and 0 steps of an optimizer were seen"):
        analyse(trainer.processes, 1)


def test_reads_without_a_loader_are_to_be_wrapped_in_one() -> None:
    """As nanoGPT's, from an array; with a loader for evaluations."""
    trainer = Trainer()
    for _ in range(3):
        trainer.now += 30 * MS
        trainer.rows.steps.append(Step(t=trainer.now, thread=trainer.thread))
        steady(trainer, 4, wait_ms=1, body_ms=5, steps=0, grad=False)
    with pytest.raises(UserError, match=r"12 batches .* and 3 steps of an optimizer .* wrap reads of your own"):
        analyse(trainer.processes, 10)
