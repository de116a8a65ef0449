"""From rows to a recording: what counts, what computes, and what is told apart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from datagen.errors import UserError
from dlemu.contrib.record.recipe import workload_of
from dlemu.contrib.record.recording import analyse, files_of
from dlemu.contrib.record.tests.made_rows import MS, Trainer, steady


def test_a_slow_source_does_not_leak_into_what_a_step_computes() -> None:
    fast, slow = Trainer(), Trainer()
    steady(fast, 60, wait_ms=0.2, body_ms=30)
    steady(slow, 60, wait_ms=90, body_ms=30)
    recordings = [analyse(one.processes, 10) for one in (fast, slow)]
    assert [one.computation.mean for one in recordings] == pytest.approx([0.030, 0.030], rel=0.001)
    assert [one.computation_from for one in recordings] == ["ready steps", "all steps"]
    assert [one.samples_per_second for one in recordings] == pytest.approx([8 / 0.0302, 8 / 0.120], rel=0.001)


def test_a_thread_that_reads_ahead_tells_what_a_step_computes_only_by_steps_without_a_stall() -> None:
    trainer = Trainer()
    trainer.thread = 999
    number = trainer.begin()
    for place in range(80):
        stalled = place == 40
        refills = 40 < place < 46  # its queue has room: it does not wait for the trainer
        trainer.batch(number, 500 if stalled else 0.1, 0.0 if stalled or refills else 30)
    trainer.over(number)
    recording = analyse(trainer.processes, 10)
    assert recording.computation.mean == pytest.approx(0.030, rel=0.001)
    assert recording.synchronous is False
    slow = Trainer()
    slow.thread = 999
    steady(slow, 60, wait_ms=90, body_ms=0.01)
    assert "the compute time of a step is not known" in " ".join(analyse(slow.processes, 10).problems)


def test_steps_that_a_busy_host_shifts_do_not_tell_what_one_computes_where_a_thread_reads_ahead() -> None:
    trainer = Trainer()
    trainer.thread = 999
    number = trainer.begin()
    wanted_core_ns = 0
    for place in range(80):
        late_ms = 40 if place % 5 == 0 else 0
        trainer.batch(number, 0.1, {0: 70, 1: 10}.get(place % 5, 30))  # 20 ms of that did delay the loop
        trainer.rows.batches[-1].main_queue = wanted_core_ns
        wanted_core_ns += late_ms * MS
    trainer.over(number)
    assert analyse(trainer.processes, 10).computation.mean == pytest.approx(0.030, rel=0.001)


def test_evaluation_within_and_between_epochs_and_a_sanity_check_are_left_out() -> None:
    plain, other = Trainer(), Trainer()
    steady(plain, 60, wait_ms=1, body_ms=20)
    sanity = other.begin(loader=2)
    for _ in range(2):
        other.batch(sanity, 5, 3, steps=0, grad=False)
    other.over(sanity)
    training = other.begin()
    for place in range(60):
        other.batch(training, 1, 20)
        if place == 30:
            evaluation = other.begin(loader=2)
            for _ in range(9):
                other.batch(evaluation, 50, 70, steps=0, grad=False)
            other.over(evaluation)
    other.over(training)
    expected, found = (analyse(one.processes, 10) for one in (plain, other))
    assert found.evaluations == 2
    assert found.steps == expected.steps
    assert found.computation.mean == pytest.approx(expected.computation.mean)
    assert found.samples_per_second == pytest.approx(expected.samples_per_second)


def test_files_of_evaluations_are_no_data_of_training_where_one_process_reads_both() -> None:
    trainer = Trainer(workers=0)
    for name, loader, steps in (("/data/train/0.npy", 1, 1), ("/data/valid/0.npy", 2, 0)):
        number = trainer.begin(loader=loader)
        for _ in range(20):
            trainer.batch(number, 5, 20, steps=steps, grad=steps > 0)
        trainer.over(number)
        trainer.rows.fetches[-1].files.append(name)
    assert set(files_of(trainer.processes, 4)) == {"/data/train/0.npy"}
    trainer.rows.fetches[19].files.clear()
    assert set(files_of(trainer.processes, 4)) == {"/data/valid/0.npy"}, "named on first use, as if both read it"


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


def test_a_loader_that_is_made_anew_for_each_pass_is_one() -> None:
    anew = Trainer()
    for loader in (1, 2):
        number = anew.begin(loader)
        for _ in range(40):
            anew.batch(number, 0.1, 25)
        anew.over(number)
    recording = analyse(anew.processes, 4)
    assert (recording.problems, recording.loaders_per_rank) == ((), 1)


def test_loaders_that_feed_each_step_become_one_that_does_the_work_of_all() -> None:
    """The shorter one is made anew where it ends, as itertools.cycle or a `while` loop does."""
    beside = Trainer()
    long, short = beside.begin(1), beside.begin(2)
    for place in range(90):
        if place in (30, 60):
            beside.over(short)
            short = beside.begin(2)
        beside.batch(long, 0.1, 0, steps=0, samples=8)
        beside.batch(short, 0.1, 50, samples=24)
    beside.over(long)
    recording = analyse(beside.processes, 4)
    assert recording.problems == ()
    assert (recording.loaders_per_rank, recording.gradient_accumulation_steps) == (2, 1)
    assert recording.computation.mean == pytest.approx(0.025, rel=0.01), "of a step, each batch has half"
    assert recording.read_batch_size == 16
    assert recording.samples_per_second == pytest.approx(32 / 0.0502, rel=0.02)
    assert recording.loading.workers == 2
    assert (recording.loading.samples, recording.loading.prefetch) == (1600, 2)


def test_loaders_that_one_can_not_stand_for_are_refused() -> None:
    streams, following = Trainer(), Trainer()
    numbers = [streams.begin(loader) for loader in (1, 2)]
    streams.rows.passes[-1].iterable = True
    for _ in range(40):
        for number in numbers:
            streams.batch(number, 0.1, 25)
    assert any("of different kinds" in problem for problem in analyse(streams.processes, 4).problems)
    for loader in (1, 2):
        number = following.begin(loader)
        following.rows.passes[-1].batch = 8 * loader
        for _ in range(40):
            following.batch(number, 0.1, 25)
        following.over(number)
    assert any("one after another" in problem for problem in analyse(following.processes, 4).problems)


def test_a_dispatcher_reads_on_rank_0_for_all() -> None:
    """As Accelerate's: rank 0 asks for a batch a rank, puts them together, and sends each its part."""
    first, second = Trainer(rank=0, ranks=2), Trainer(pid=500, rank=1, ranks=2)
    number = first.begin()
    for place in range(80):
        first.batch(number, 0.1, 40 if place % 2 else 0, steps=place % 2)
    first.over(number)
    second.rows.steps = list(first.rows.steps)
    recording = analyse([*first.processes, second.rows], 10)
    assert (recording.ranks, recording.ranks_that_read, recording.loaders) == (2, "first", 1)
    assert (recording.batch_size, recording.read_batch_size, recording.gradient_accumulation_steps) == (8, 8, 1)
    tree = workload_of(recording, None, engine="matched")
    assert (tree["ranks"], tree["reader"]["batch_size"]) == (1, 8)
    rate = tree["reader"]["batch_size"] / (recording.computation.mean + recording.wait.mean)
    assert rate == pytest.approx(recording.samples_per_second, rel=0.01), "all ranks' samples"
    assert "one rank reads for 2" in " ".join(recording.notes)


def test_ranks_add_up_and_their_count_does_not_scale() -> None:
    ranks = [Trainer(rank=0, ranks=2), Trainer(pid=500, rank=1, ranks=2)]
    for one in ranks:
        steady(one, 40, wait_ms=0, body_ms=20)
    recording = analyse([rows for one in ranks for rows in one.processes], 4)
    assert (recording.ranks, recording.ranks_that_read) == (2, "all")
    assert recording.samples_per_second == pytest.approx(2 * 8 / 0.020, rel=0.001)
    assert "does not scale" in " ".join(recording.notes)


def test_the_accelerators_own_clock_goes_before_the_hosts() -> None:
    trainer = Trainer()
    number = trainer.begin()
    for _ in range(60):
        trainer.batch(number, 0.1, 30, device_ms=27.5)
    trainer.over(number)
    recording = analyse(trainer.processes, 10)
    assert recording.computation_from == "device"
    assert recording.computation.mean == pytest.approx(0.0275)


def test_checkpoints_every_some_steps_are_told_from_those_of_epochs() -> None:
    """Beside evaluations, over several epochs, and with a file for each part of a checkpoint."""
    often, once = Trainer(), Trainer()
    for trainer, places in ((often, (9, 19)), (once, (29,))):
        for _ in range(2):
            number = trainer.begin()
            for place in range(30):
                trainer.batch(number, 0.1, 30, save_ms=400 if place in places else 0)
                if place in places:
                    last = trainer.rows.saves[-1]
                    trainer.rows.saves.append(replace(last, t0=trainer.now, t1=trainer.now + 100 * MS, bytes=8000))
                    trainer.now += 100 * MS
                    evaluation = trainer.begin(loader=2)
                    for _ in range(3):
                        trainer.batch(evaluation, 0.1, 5, steps=0, grad=False)
                    trainer.over(evaluation)
            trainer.over(number)
    found = [analyse(trainer.processes, 10).saves for trainer in (often, once)]
    assert [one and (one.count, one.bytes, one.batches_between) for one in found] == [
        (4, 12_000, 10),
        (2, 12_000, None),
    ]
    assert found[0] is not None
    assert found[0].seconds == pytest.approx(0.5)


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


def test_a_loader_that_read_everything_before_is_seen_to() -> None:
    trainer = Trainer()
    steady(trainer, 60, 0.1, 20)
    for place, fetch in enumerate(trainer.worker.fetches):
        fetch.read, fetch.calls = (5_000_000, 40) if place == 0 else (30, 0)
        fetch.process_read, fetch.process_read_in = 5_000_000 + 700 * place, fetch.read
    recording = analyse(trainer.processes, 10)
    assert (recording.mapped, recording.read_bytes_per_sample) == (True, 0.0), "30 bytes are the queue's"
    assert recording.read_before_bytes == pytest.approx(5_000_000, rel=0.01)


def test_what_holds_no_training_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"left no rows.*import dlemu\.contrib\.record"):
        analyse([], 10)
    trainer = Trainer()
    trainer.rows.process.seen = ["jax"]
    trainer.now = 5 * MS
    number = trainer.begin()
    trainer.batch(number, 1, 1)
    with pytest.raises(UserError, match=r"1 batches were seen, and the first 10 are left out as warm-up"):
        analyse(trainer.processes, 10)
    trainer.rows.steps.clear()
    with pytest.raises(UserError, match=r"1 batches were seen, none of them in training.*JAX"):
        analyse(trainer.processes, 1)
