"""`dlemu size`: how many accelerators does this storage feed?"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import click

from dlemu.cli.options import configured

if TYPE_CHECKING:
    from dlemu.config.schema import Workload


@click.command(name="size", short_help="Find the most accelerators that this storage keeps busy.")
@configured
@click.option("--at-least", type=click.IntRange(min=1), help="Exit with 1 when fewer than so many pass (for CI).")
@click.option("--most", type=click.IntRange(min=1), default=4096, show_default=True, help="Try no more than so many.")
@click.option(
    "--confidence",
    type=click.FloatRange(50, 99.99),
    default=95.0,
    show_default=True,
    help="Of the verdicts, in percent.",
)
@click.option(
    "--trial-seconds",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    help="Most compute time of a trial; most end earlier, as soon as their verdict is decided.",
)
@click.option("--make", is_flag=True, help="Make the dataset first, or what is missing of it.")
@click.option("--cached", is_flag=True, help="Let the page cache serve: sizes memory, not storage.")
def command(
    overrides: tuple[str, ...],
    config_dir: str | None,
    cfg: bool,
    at_least: int | None,
    most: int,
    confidence: float,
    trial_seconds: float,
    make: bool,
    cached: bool,
) -> None:
    """Find the most accelerators that this storage keeps busy.

    \b
    dlemu size workload=unet3d accelerator=h100 dataset.data_folder=/mnt/nvme/unet3d
    dlemu size workload=unet3d accelerator=h100 dataset.data_folder=/mnt/nvme/unet3d --at-least 16
    dlemu size workload=unet3d launcher="mpirun -np {ranks} --hostfile hosts" reader.odirect=true

    Reads a little to estimate, brackets, closes in, and repeats the two counts at the edge. Each trial is a
    `dlemu train` that ends as soon as its verdict is decided. When interrupted, the same command with
    output.folder=FOLDER goes on with the trials that are finished.

    Exit status: 0 found (--at-least: so many pass), 1 none passes (--at-least: fewer), 2 a usage error, 3 a trial
    failed, 4 no verdict (too close to tell, the host gave out first, too few samples for so many), 128 + signal.
    """
    from rich.console import Console

    from dlemu.cli.again import Watched, interrupted
    from dlemu.cli.options import report_result
    from dlemu.comm import Interrupted
    from dlemu.config import load, to_yaml
    from dlemu.metrics.verdict import EXIT_STATUSES
    from dlemu.report.series_report import print_answer
    from dlemu.sizing.find_size import size

    if cfg:
        click.echo(to_yaml(load(overrides, config_dir=config_dir)), nl=False)
        return
    watched = Watched()
    try:
        answer = size(
            overrides,
            config_dir=config_dir,
            at_least=at_least,
            most=most,
            confidence_percent=confidence,
            trial_seconds=trial_seconds,
            cached=cached,
            make=partial(_make, asked=make),
            on_event=watched,
        )
    except Interrupted as stop:
        raise SystemExit(interrupted(stop, "finished trials", watched.folder)) from None
    print_answer(answer, watched.folder, Console())
    report_result(watched.wants_page, watched.folder)
    raise SystemExit(EXIT_STATUSES[answer.outcome or "no verdict"])


def _make(workload: Workload, *, asked: bool) -> None:
    """Make what is missing of the dataset, with a rank for each core, where that is asked for."""
    from dlemu.cli.frontends import TerminalFrontend
    from dlemu.run.datasets import make_on_this_host

    if asked or workload.workflow.generate_data:
        make_on_this_host(workload, len(os.sched_getaffinity(0)), TerminalFrontend([], None).tell, fsync=True)
