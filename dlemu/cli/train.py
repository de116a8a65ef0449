"""`dlemu train`: configuration, checks, ranks, result."""

from __future__ import annotations

import click

from dlemu.cli.options import configured, print_config


@click.command(name="train", short_help="Train with emulated accelerators.")
@configured
@click.option("--make", is_flag=True, help="Make the dataset first, as large as these ranks need, or what is missing.")
@click.option("--yes", is_flag=True, help="With --make: do not ask before more than 10 GB are made.")
@click.option("--export-dlio", metavar="FILE", help="Write the configuration as a workload file of DLIO's, and stop.")
def command(
    overrides: tuple[str, ...], config_dir: str | None, cfg: bool, make: bool, yes: bool, export_dlio: str | None
) -> None:
    """Train with emulated accelerators and say how busy the storage kept them.

    \b
    dlemu train workload=unet3d accelerator=h100 ranks=18 dataset.data_folder=/mnt/nvme/unet3d --make
    mpirun -np 18 dlemu train workload=unet3d dataset.data_folder=/mnt/nvme/unet3d dataset.num_files_train=2520

    Settings are hydra overrides with DLIO's section and key names; --cfg prints them all. Under mpirun or srun the
    ranks are the launcher's.

    Exit status: 0 the run passed, 1 it failed at the threshold, 2 a usage error, 3 a worker or a rank failed, 4 it
    completed with no verdict (NO VERDICT, UNDECIDED), 128 + signal for a run that a signal ended.
    """
    if cfg:
        print_config(overrides, config_dir, to_train=True)
    elif export_dlio is not None:
        _export(overrides, config_dir, export_dlio)
    else:
        from dlemu.cli import complain
        from dlemu.run.launched import stands_in

        if stands_in(overrides, complain):
            return
        from dlemu.cli.frontends import TerminalFrontend, show_training

        raise SystemExit(show_training(TerminalFrontend(overrides, config_dir, make=make, yes=yes)))


def _export(overrides: tuple[str, ...], config_dir: str | None, path: str) -> None:
    import os

    from datagen.atomic import write_text
    from dlemu.config import load
    from dlemu.mlperf.dlio_export import dlio_yaml

    path = os.path.abspath(path)
    write_text(os.path.dirname(path), os.path.basename(path), dlio_yaml(load(overrides, config_dir=config_dir)))
    click.echo(f"written: {path}")
