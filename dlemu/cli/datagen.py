"""`dlemu datagen`: make a dataset, or verify one."""

from __future__ import annotations

import click

from dlemu.cli.options import print_config, settings_options


@click.command(name="datagen")
@settings_options
@click.option("--fsync", is_flag=True, help="Sync each file to the device before renaming it into place.")
def command(overrides: tuple[str, ...], config_dir: str | None, cfg: bool, fsync: bool) -> None:
    """Make a workload's dataset, or verify one.

    \b
    dlemu datagen workload=unet3d dataset.data_folder=/mnt/nvme/unet3d
    dlemu datagen verify workload=unet3d dataset.data_folder=/mnt/nvme/unet3d
    mpirun -np 8 dlemu datagen workload=unet3d dataset.data_folder=/mnt/nvme/unet3d

    When interrupted, the same command continues: only missing files are made. `verify` compares every byte and names
    each file that is truncated, changed, swapped or missing.

    Exit status: 0 done (verify: every byte is as generated), 2 a usage error or (verify) wrong files.
    """
    verifying = overrides[:1] == ("verify",)
    if verifying:
        overrides = overrides[1:]
    if verifying and fsync:
        raise click.UsageError("--fsync is for writing, and `dlemu datagen verify` only reads: leave --fsync out")
    if cfg:
        print_config(overrides, config_dir)
        return
    from dlemu.runner.launched import run_as_placeholder  # first: a process that only waits needs no more

    if run_as_placeholder(overrides):
        return
    from dlemu.cli.frontends import Terminal, job_request
    from dlemu.jobs.training.preflight import why_too_small
    from dlemu.runner.datasets import run_datagen, run_verify

    request = job_request(overrides, config_dir)
    if verifying:
        run_verify(request, Terminal())
    else:
        run_datagen(request, Terminal(), warning_for=why_too_small, fsync=fsync)
