"""`dlemu predict`: how many accelerators would this storage feed, without running them?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from dlemu.cli.options import Number, answer_options, make_options, settings_options


@click.command(name="predict")
@settings_options
@click.option("--from", "from_folder", metavar="DIR", help="Use the storage of a run (DLIO's too), or of a prediction.")
@click.option("--mb-per-second", type=Number(0, 1e9, min_open=True), help="Assume a storage of this speed.")
@click.option("--drive", metavar="FILE", help="Assume a drive: its data sheet, fio's JSON, elbencho's, a probe.")
@click.option("--hosts", type=click.IntRange(min=1), help="Hosts that share the storage. [default: 1, or as --from]")
@click.option("--host-cores", type=click.IntRange(min=1), help="Cores of each host. [default: as many as here]")
@click.option("--others-mb-per-second", type=Number(0, 1e9), default=0.0, help="Bandwidth that other jobs use, MB/s.")
@click.option("--most", type=click.IntRange(min=1), help="Predict at most this many. [default: 10000]")
@make_options("files of the dataset")
@click.option("--restart-minutes", type=Number(0, 1e4, min_open=True), default=5.0, help="Longest checkpoint load.")
@answer_options("predict.json")
def command(
    overrides: tuple[str, ...], config_dir: str | None, cfg: bool, make: bool, yes: bool, as_json: bool, **storage: Any
) -> None:
    """Predict how busy a storage would keep accelerators, or how many it feeds; or what a job needs of a storage.

    \b
    dlemu predict workload=unet3d accelerator=h100 ranks=1024                                      # what do I need?
    dlemu predict jobs.yaml                                                                        # of several at once
    dlemu predict workload=unet3d accelerator=h100 dataset.data_folder=/mnt/nvme/unet3d            # the most that pass
    dlemu predict workload=unet3d accelerator=b200 ranks=16 --from results/unet3d/20260102-030405-4711 # a run's storage
    dlemu predict workload=unet3d accelerator=h100 --mb-per-second 7000                            # a storage of 7 GB/s
    dlemu predict workload=resnet50 accelerator=h100 --drive sheet.yaml                            # by size and depth

    A dataset's storage is probed first, for two minutes at most. Then a model of loaders, accelerators and storage
    predicts what a run would measure (docs/prediction.md). For a checkpoint workload (workload=llama3_70b) it predicts
    how long a checkpoint takes to write and to read, and how much that slows down training.

    Exit status: 0 it passes (without ranks: at least one accelerator does), 1 it does not, 2 a usage error, 3 a reader
    failed, 4 too close to call, 128 + signal.
    """
    import signal

    from datagen.registry import installed_part
    from dlemu.cli.frontends import Terminal, make_here
    from dlemu.cli.options import show_answer
    from dlemu.config import load, to_yaml
    from dlemu.metrics.verdict import EXIT_STATUSES
    from dlemu.ranks import interrupt_on
    from dlemu.results.kinds import kind_or_training
    from dlemu.runner.prediction_request import PredictionRequest
    from dlemu.studies.predict import known_workload, predict

    interrupt_on(signal.SIGTERM)
    request = PredictionRequest(
        **storage,
        config_dir=config_dir,
        make=partial(make_here, as_json=as_json, yes=yes) if make else None,
        read_foreign=installed_part("dlemu.foreign", "run"),
        on_event=Terminal(as_json=as_json),
    )
    if cfg:
        click.echo(to_yaml(load(overrides, config_dir=config_dir, base=known_workload(request))), nl=False)
        return
    answer, folder, workload = predict(overrides, request)
    show_answer(answer, folder, kind_or_training(folder).name, as_json=as_json, page=workload.output.report)
    raise SystemExit(EXIT_STATUSES[answer.outcome or "pass"])
