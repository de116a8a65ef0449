"""A loader follows from the workload: who picks samples gets a plan of samples, who streams files one of files."""

from __future__ import annotations

import os
from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.config import check_runnable
from dlemu.config.schema import Checkpoint, Evaluation, Reader, Train, Workflow, Workload
from dlemu.jobs.training.plan import TrainingJob, make_schedule
from dlemu.jobs.training.preflight import memory_needed
from dlemu.plan.streams import StreamPlan
from tests.runs import make_job


def streaming(**reader: Any) -> TrainingJob:
    settings: dict[str, Any] = {
        "data_loader": "tensorflow",
        "batch_size": 4,
        "read_threads": 3,
        "sample_shuffle": "seed",
    } | reader
    dataset = replace(make_job().workload.dataset, format="tfrecord")
    return make_job(dataset=dataset, reader=Reader(**settings))


def test_tfrecord_through_tensorflow_is_a_stream_of_files() -> None:
    job = streaming()
    assert isinstance(job.train_plan, StreamPlan)
    assert job.train_plan.cycle == 3
    assert isinstance(job.loader_spec(1).phases["train"].plan.plan, StreamPlan)
    assert isinstance(streaming(read_threads=0).train_plan, StreamPlan)
    assert not isinstance(streaming(data_loader="pytorch").train_plan, StreamPlan)


def test_a_shuffle_window_holds_batches_back_and_takes_memory() -> None:
    small, large = streaming(shuffle_size=8), streaming(shuffle_size=800)
    ready, parsed, assembled = 2, 2, 1
    ahead = ready + parsed + assembled
    begun = 9  # files of one sample: three in turn, and twice as many begun
    assert (small.batches_ahead, large.batches_ahead) == (
        ahead + ceil((8 + begun) / 4),
        ahead + ceil((800 + begun) / 4),
    )
    assert streaming(sample_shuffle="off").batches_ahead == ahead + ceil(begun / 4)
    sample_bytes = small.loader_spec(0).phases["train"].fetch.nominal_sample_bytes
    assert memory_needed(large, 2) - memory_needed(small, 2) == 2 * 792 * sample_bytes


def test_threads_above_the_cores_hold_no_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    as_many, more = streaming(computation_threads=3), streaming(computation_threads=64)
    assert more.batches_ahead == as_many.batches_ahead == streaming(computation_threads=1).batches_ahead + 1
    assert memory_needed(more, 1) == memory_needed(as_many, 1)
    assert more.loader_spec(0).computation_threads == 3


def test_evaluation_reads_into_buffers_of_its_own() -> None:
    dataset = replace(make_job().workload.dataset, num_files_eval=8, record_length_bytes_resize=4096)
    training = make_job(dataset=dataset, workflow=Workflow(evaluation=False))
    evaluating = make_job(dataset=dataset, workflow=Workflow(evaluation=True))
    workers = evaluating.workload.reader.read_threads
    buffer_bytes = evaluating.loader_spec(0).phases["valid"].fetch.buffer_bytes
    assert buffer_bytes > 0
    assert memory_needed(evaluating, 1) - memory_needed(training, 1) == workers * buffer_bytes


@pytest.mark.parametrize("key", ["odirect", "verify"])
def test_what_tensorflow_can_not_do_is_refused_before_the_run(key: str) -> None:
    with pytest.raises(UserError, match=f"reader.{key} is true: TensorFlow itself reads tfrecord.*data_loader=pytorch"):
        check_runnable(streaming(**{key: True}).workload)


# Epochs, blocks, and what comes between them.


def workload(**train: object) -> Workload:
    return Workload(train=Train(**train))  # type: ignore[arg-type]  # a mapping of mixed values


def test_total_training_steps_cut_the_run() -> None:
    epochs = make_schedule(workload(epochs=5, total_training_steps=45), 20)
    assert [epoch.steps for epoch in epochs] == [20, 20, 5]
    assert all(len(epoch.blocks) == 1 and not epoch.blocks[0].checkpoint for epoch in epochs)
    assert [epoch.steps for epoch in make_schedule(workload(epochs=5, total_training_steps=40), 20)] == [20, 20]


def test_unet3d_checkpoints_once_after_epoch_5() -> None:
    settings = Checkpoint(checkpoint_after_epoch=5, epochs_between_checkpoints=2)
    run = replace(workload(epochs=5), workflow=Workflow(checkpoint=True), checkpoint=settings)
    assert [epoch.blocks[-1].checkpoint for epoch in make_schedule(run, 4)] == [False] * 4 + [True]
    assert not any(epoch.blocks[-1].checkpoint for epoch in make_schedule(replace(run, workflow=Workflow()), 4)), (
        "workflow.checkpoint=false"
    )


def test_checkpoints_within_an_epoch_split_it_into_blocks() -> None:
    run = replace(
        workload(epochs=1), workflow=Workflow(checkpoint=True), checkpoint=Checkpoint(steps_between_checkpoints=250)
    )
    (epoch,) = make_schedule(run, 600)
    assert [(block.number, block.steps, block.checkpoint) for block in epoch.blocks] == [
        (1, 250, True),
        (2, 250, True),
        (3, 100, False),
    ]


def test_evaluations_fall_where_asked() -> None:
    run = replace(
        workload(epochs=6),
        workflow=Workflow(evaluation=True),
        evaluation=Evaluation(eval_after_epoch=2, epochs_between_evals=3),
    )
    assert [epoch.number for epoch in make_schedule(run, 1) if epoch.evaluation] == [2, 5]
