"""`dlemu mlperf run`: a rehearsal of an MLPerf Storage submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlemu.cli.options import configured

if TYPE_CHECKING:
    from dlemu.mlperf.rules import Division


@click.command(name="run", short_help="Rehearse a submission: all its runs, laid out as its tree.")
@configured
@click.option("--edition", type=click.Choice(["1.0", "2.0", "3.0"]), help="Default: the newest that has the pair.")
@click.option("--division", type=click.Choice(["closed", "open"]), default="closed", show_default=True)
@click.option("--org", "organisation", default="rehearsal", show_default=True, help="Name of the submitter's folder.")
@click.option("--system", default="system", show_default=True, help="Name of the system's folder.")
@click.option("--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts that the ranks run on.")
@click.option("--memory-gib", type=click.FloatRange(min=0.001), help="Of each host, in GiB; default: this host's.")
@click.option("--make", is_flag=True, help="Make the dataset first, or what is missing of it.")
def run_command(
    overrides: tuple[str, ...],
    config_dir: str | None,
    cfg: bool,
    edition: str | None,
    division: Division,
    organisation: str,
    system: str,
    hosts: int,
    memory_gib: float | None,
    make: bool,
) -> None:
    """Rehearse a submission: the edition's runs one after another on one dataset, laid out as its tree, and checked.

    \b
    dlemu mlperf run workload=unet3d accelerator=h100 ranks=8 dataset.data_folder=/mnt/nvme/unet3d \\
        dataset.num_files_train=28000 --org mylab --system nvme-box
    dlemu mlperf run workload=unet3d accelerator=b200 ranks=16 --hosts 2 launcher="mpirun -np {ranks} -f hosts" ...

    A warm-up run and 5 measured runs (v1.0: 5), each with another shuffle. Every run is a `dlemu train`, kept in runs/;
    tree/ is what the edition's tool would leave. When interrupted, or when a run failed, the same command with
    output.folder=FOLDER goes on. This is no submission: CLOSED results need mlpstorage and DLIO, unchanged.

    Exit status: 0 all runs pass and no rule is broken, 1 not so, 2 a usage error, 3 a run failed, 128 + signal.
    """
    from dlemu.cli.mlperf_rehearse import Asked, rehearsed
    from dlemu.config import load, to_yaml

    if cfg:
        click.echo(to_yaml(load(overrides, config_dir=config_dir)), nl=False)
        return
    asked = Asked(
        overrides=overrides,
        config_dir=config_dir,
        edition=edition,
        division=division,
        organisation=organisation,
        system=system,
        hosts=hosts,
        memory_gib=memory_gib,
        make=make,
    )
    raise SystemExit(rehearsed(asked))
