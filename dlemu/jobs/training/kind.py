"""Registers training runs, and predictions of them: their commands, and the functions that handle each, by name."""

from __future__ import annotations

from dlemu.results.kinds import Kind

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
    read="result.read_run",
    result="summary.Summary",
    page="page.open_page",
    points="figures_of.points",
    advise="advice.advise",
    host_checks="host_checks",
    pattern="pattern.measure_pattern",
    about="page.about",
    job="run.TRAINING",
    predicts="prediction.run_prediction.run_prediction",
    live="live.LiveTraining",
    summary="result.read_summary",
    metrics="metrics.CATALOGUE",
    figures="figures_of.figures",
    conditions="figures_of.conditions",
    show="page.print_result",
    exported="measured.exported",
)
ANSWERS = (
    Kind(
        name="prediction",
        noun="a prediction",
        marks=("predict.json",),
        precedence=1,  # its folder also has the probe that it is made from
        command="predict",
        help="Predict how many accelerators a storage keeps busy, without running them.",
        read="prediction.run_prediction.read_prediction",
        result="prediction.prediction.Prediction",
        page="prediction.page.open_page",
        points="prediction.page.points",
        show="prediction.page.print_prediction",
    ),
)
