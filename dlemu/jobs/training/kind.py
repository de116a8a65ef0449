"""Registers training runs, their predictions, and the needs of jobs as kinds of results."""

from __future__ import annotations

from dlemu.results.kinds import JobParts, Kind, Parts


def _training() -> JobParts:
    from dlemu.jobs.training.parts import PARTS

    return PARTS


def _prediction() -> Parts:
    from dlemu.jobs.training.prediction.prediction import PARTS

    return PARTS


def _needs() -> Parts:
    from dlemu.jobs.training.prediction.needs import PARTS

    return PARTS


KIND = Kind(
    name="training",
    noun="a training run",
    command="train",
    help="Train with emulated accelerators and report how busy the storage kept them.",
    usage="""Train with emulated accelerators and report how busy the storage kept them.

    \b
    dlemu train workload=unet3d accelerator=h100 ranks=18 dataset.data_folder=/mnt/nvme/unet3d --make
    mpirun -np 18 dlemu train workload=unet3d dataset.data_folder=/mnt/nvme/unet3d dataset.num_files_train=2520

    Settings are hydra overrides with DLIO's section and key names; --cfg prints them all. Under mpirun or srun the
    ranks are the launcher's.""",
    load=_training,
    is_exported=True,
)
ANSWERS = (
    Kind(
        name="prediction",
        noun="a prediction",
        answer="predict.json",
        precedence=1,  # its folder also holds the probe that it was made from
        command="predict",
        help="Predict how many accelerators a storage keeps busy, without running them.",
        load=_prediction,
    ),
    Kind(name="needs", noun="what jobs need of a storage", answer="needs.json", command="predict", load=_needs),
)
