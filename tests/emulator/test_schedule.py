from dataclasses import replace

from dlemu.config.schema import Checkpoint, Evaluation, Train, Workflow, Workload
from dlemu.jobs.training.plan import make_schedule


def workload(**train: object) -> Workload:
    return Workload(train=Train(**train))  # type: ignore[arg-type]  # a mapping of mixed values


def test_each_epoch_is_one_block() -> None:
    epochs = make_schedule(workload(epochs=3), 20)
    assert [epoch.steps for epoch in epochs] == [20, 20, 20]
    assert all(len(epoch.blocks) == 1 and not epoch.blocks[0].checkpoint for epoch in epochs)


def test_total_training_steps_cut_the_run() -> None:
    assert [epoch.steps for epoch in make_schedule(workload(epochs=5, total_training_steps=45), 20)] == [20, 20, 5]
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
