"""Registers checkpoint runs and their predictions as kinds of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlemu.results.kinds import JobParts, Kind, Parts

if TYPE_CHECKING:  # every command imports this module
    from dlemu.config.schema import Workload


def only_saves(workload: Workload) -> bool:
    """Return whether checkpoints are the workload's only phase (DLIO's `checkpoint_only`)."""
    phases = workload.workflow
    return phases.checkpoint and not (phases.train or phases.generate_data)


def only_checkpoints(workload: Workload) -> bool:
    """Return whether checkpoints are the workload's only phase, and it sets how many to write or read."""
    settings = workload.checkpoint
    return only_saves(workload) and max(settings.num_checkpoints_write, settings.num_checkpoints_read) > 0


def _checkpoints() -> JobParts:
    from dlemu.jobs.checkpoint.parts import PARTS

    return PARTS


def _prediction() -> Parts:
    from dlemu.jobs.checkpoint.prediction import PARTS

    return PARTS


KIND = Kind(
    name="checkpoint",
    noun="a run of checkpoints",
    command="checkpoint",
    help="Write and read a model's checkpoints and report how fast the storage wrote and read them.",
    usage="""Write and read the checkpoints of a model, and report how fast the storage wrote and read them.

    \b
    dlemu checkpoint workload=llama3_8b checkpoint.checkpoint_folder=/mnt/nvme/ckpt
    dlemu checkpoint workload=llama3_8b scale=laptop            # as many files and tensors, 1/250 of the bytes
    mpirun -np 64 dlemu checkpoint workload=llama3_70b checkpoint.checkpoint_folder=/mnt/lustre/ckpt
    dlemu checkpoint workload=llama3_1t ranks=8 checkpoint.job_ranks=1024 checkpoint.first_rank=16

    Settings are hydra overrides with DLIO's section and key names; --cfg prints them all. On a file
    system, a rank takes less than 300 MB of memory. Under mpirun or srun the ranks are the launcher's.""",
    load=_checkpoints,
    wants=only_checkpoints,
    is_all=only_saves,
    is_exported=True,
)
ANSWERS = (
    Kind(
        name="checkpoint-prediction",
        noun="a prediction of checkpoints",
        answer="predict_checkpoints.json",
        command="predict",
        load=_prediction,
    ),
)
