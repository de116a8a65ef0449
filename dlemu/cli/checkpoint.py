"""`dlemu checkpoint`: a model's checkpoints written, read and timed."""

from __future__ import annotations

import click

from dlemu.cli.options import configured, print_config


@click.command(name="checkpoint", short_help="Write and read a model's checkpoints.")
@configured
@click.option("--make", is_flag=True, help="Write the checkpoints to be read that are not there; ask above 10 GB.")
@click.option("--yes", is_flag=True, help="With --make: do not ask.")
def command(overrides: tuple[str, ...], config_dir: str | None, cfg: bool, make: bool, yes: bool) -> None:
    """Write and read the checkpoints of a model, and say how fast the storage took and gave them.

    \b
    dlemu checkpoint workload=llama3_8b checkpoint.checkpoint_folder=/mnt/nvme/ckpt
    dlemu checkpoint workload=llama3_8b scale=laptop            # files and tensors as many, a 250th of the bytes
    mpirun -np 64 dlemu checkpoint workload=llama3_70b checkpoint.checkpoint_folder=/mnt/lustre/ckpt
    dlemu checkpoint workload=llama3_1t ranks=8 checkpoint.job_ranks=1024 checkpoint.first_rank=16

    Settings are hydra overrides with DLIO's section and key names; --cfg prints them all. A rank takes less than
    300 MB of memory whatever the model's size. Under mpirun or srun the ranks are the launcher's.

    Exit status: 0 all checkpoints were written and read, 2 a usage error (a full disk, a damaged file), 3 a rank
    failed, 128 + signal for a run that a signal ended.
    """
    if cfg:
        print_config(overrides, config_dir)
        return
    from dlemu.cli import complain
    from dlemu.run.launched import stands_in

    if stands_in(overrides, complain):
        return
    from dlemu.cli.frontends import TerminalFrontend, show_checkpoints

    raise SystemExit(show_checkpoints(TerminalFrontend(overrides, config_dir, make=make, yes=yes)))
