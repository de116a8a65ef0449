"""`dlemu watch`: show the progress of a run."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dlemu.results.progress import Figure, Progress

LOOK_SECONDS = 1.0


@click.command(name="watch", short_help="Show the progress of a run: AU, MB/s, queue depth, time left.")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--ranks", is_flag=True, help="Show each rank as well.")
def command(folder: str, ranks: bool) -> None:
    """Show the progress of a run from another terminal: AU so far, MB/s, samples/s, wait, queue depth.

    \b
    dlemu watch results/unet3d/20260102-030405-4711
    dlemu watch results/unet3d/20260102-030405-4711 --ranks

    DIR is the run's folder (output.folder; of a sweep or a search, that of one of its runs). On a terminal the figures
    are redrawn each second, elsewhere a line is printed each second. Rates and waits are of the last 10 seconds. It
    reads files that the ranks write anyway, and costs the run nothing but part of one core.

    Exit status: that of the run when it ends (3 for one that failed or was killed), 2 when DIR holds no run.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from dlemu.results.wording import VISIBLE
    from dlemu.runner.follow import RunFollower

    follower, console = RunFollower(folder), Console()
    run = f"{follower.workload} in {follower.folder}"
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while (seen := follower.look()).state in ("starts", "runs"):
            figures, *of_ranks = _rows(seen.progress, ranks=ranks)
            if live is None:
                click.echo("\n".join(map("  ".join, [figures, *of_ranks])))
            else:
                shown = "\n".join([run, *figures, *map("  ".join, of_ranks)])
                live.update(Text(shown.translate(VISIBLE)), refresh=True)
            time.sleep(LOOK_SECONDS)
    click.echo(seen.sentence, err=seen.state == "dead")
    raise SystemExit(seen.status)


def _rows(progress: Progress | None, *, ranks: bool) -> list[list[str]]:
    """Return where the run is with its figures, then with `ranks` the figures of each."""
    if progress is None:
        return [["the run is starting"]]
    of_ranks = sorted(progress.ranks.items()) if ranks else ()
    return [
        [_head(progress), *map(_text, progress.figures)],
        *([f"  rank {rank}", *map(_text, figures)] for rank, figures in of_ranks),
    ]


def _head(progress: Progress) -> str:
    share = () if progress.done_ratio is None else (f"{100 * progress.done_ratio:3.0f} %",)
    parts = [*share, progress.at]
    if progress.seconds_left is not None:
        left = round(progress.seconds_left)
        parts.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
    return "  ".join(parts)


def _text(figure: Figure) -> str:
    from dlemu.results.progress import figure_texts

    name, value = figure_texts(figure)
    of = f" ({', '.join(figure.labels.values())})" if figure.labels else ""
    return f"{name}{of} {value}"
