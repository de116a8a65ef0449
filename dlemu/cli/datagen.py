"""`dlemu datagen`: make a dataset, or verify one."""

from __future__ import annotations

import click

from dlemu.cli.options import configured


@click.command(name="datagen", short_help="Make a workload's dataset, or verify one.")
@configured
@click.option("--fsync", is_flag=True, help="Sync each file to the device before it gets its name.")
def command(overrides: tuple[str, ...], config_dir: str | None, cfg: bool, fsync: bool) -> None:
    """Make a workload's dataset, or verify one.

    \b
    dlemu datagen workload=unet3d dataset.data_folder=/mnt/nvme/unet3d
    dlemu datagen verify workload=unet3d dataset.data_folder=/mnt/nvme/unet3d
    mpirun -np 8 dlemu datagen workload=unet3d dataset.data_folder=/mnt/nvme/unet3d

    A dataset that was interrupted is resumed by the same command: only what is missing is made again. `verify` compares
    every byte and names each file that is truncated, changed, swapped, missing or foreign.

    Exit status: 0 done (verify: nothing wrong), 2 a mistake to mend (verify: something is wrong).
    """
    from dlemu.cli.making import make_with_ranks, verify_with_ranks
    from dlemu.config import load, to_yaml

    verifying = overrides[:1] == ("verify",)
    overrides = overrides[1:] if verifying else overrides
    if cfg:
        click.echo(to_yaml(load(overrides, config_dir=config_dir)), nl=False)
    elif verifying:
        raise SystemExit(verify_with_ranks(overrides, config_dir))
    else:
        raise SystemExit(make_with_ranks(overrides, config_dir, fsync))
