"""`dlemu watch`: show the progress of a run."""

from __future__ import annotations

import time

import click


@click.command(name="watch")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
def command(folder: str) -> None:
    """Show the progress of a run from another terminal: AU so far, MB/s, samples/s, wait.

    \b
    dlemu watch results/unet3d/20260102-030405-4711

    DIR is the run's folder (output.folder; of a sweep or a search, that of one of its runs). On a terminal the figures
    are redrawn each second, elsewhere lines are printed each second. Rates and waits are of the last 10 seconds. It
    reads files that the ranks write anyway, and costs the run nothing but part of one core.

    Exit status: that of the run when it ends (3 for one that failed or was killed), 2 when DIR holds no run.
    """
    from rich.console import Console

    from dlemu.report.progress import ProgressLine
    from dlemu.results.live import Progress
    from dlemu.runner.events import REPORT_SECONDS
    from dlemu.runner.follow import follow_run

    line = ProgressLine(Console(), plain_seconds=0)
    for run in follow_run(folder):
        if run.state != "runs":
            click.echo(run.sentence, err=run.state == "dead")
            raise SystemExit(run.status)
        progress = run.progress or Progress(at="the run is starting")
        line.show("  ".join([str(progress), *map(str, progress.figures)]))
        time.sleep(REPORT_SECONDS)
