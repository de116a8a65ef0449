"""`dlemu watch`: show the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from dlemu.cli.options import propose_folder

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from dlemu.results.progress import Figure, Progress
    from dlemu.runner.follow import RunFollower, RunState

LOOK_SECONDS = 1.0


@click.command(name="watch", short_help="Show the progress of a run: AU, MB/s, queue depth, time left.")
@click.argument("folder", metavar="DIR", shell_complete=propose_folder)
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

    from dlemu.runner.follow import RunFollower

    follower, console = RunFollower(folder), Console()
    seen = _on_terminal(follower, console, ranks=ranks) if console.is_terminal else _in_lines(follower, ranks=ranks)
    click.echo(seen.sentence, err=seen.state == "dead")
    raise SystemExit(seen.status)


def _on_terminal(follower: RunFollower, console: Console, *, ranks: bool) -> RunState:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=False) as live:
        while (seen := follower.look()).state in ("starts", "runs"):
            live.update(_drawn(follower, seen.progress, ranks=ranks), refresh=True)
            time.sleep(LOOK_SECONDS)
    return seen


def _in_lines(follower: RunFollower, *, ranks: bool) -> RunState:
    while (seen := follower.look()).state in ("starts", "runs"):
        if seen.progress is None:
            click.echo("the run is starting")
        else:
            click.echo("  ".join([_head(seen.progress), *map(_in_line, seen.progress.figures)]))
            for rank, figures in sorted(seen.progress.ranks.items() if ranks else ()):
                click.echo("  ".join([f"  rank {rank}", *map(_in_line, figures)]))
        time.sleep(LOOK_SECONDS)
    return seen


def _head(progress: Progress) -> str:
    share = () if progress.done_ratio is None else (f"{100 * progress.done_ratio:3.0f} %",)
    parts = [*share, progress.at]
    if progress.seconds_left is not None:
        left = round(progress.seconds_left)
        parts.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
    return "  ".join(parts)


def _in_line(figure: Figure) -> str:
    from dlemu.results.progress import figure_texts

    name, value = figure_texts(figure)
    return f"{name}{_of(figure)} {value}"


def _of(figure: Figure) -> str:
    return f" ({', '.join(figure.labels.values())})" if figure.labels else ""


def _drawn(follower: RunFollower, progress: Progress | None, *, ranks: bool) -> Group:
    """Return a table with a row per figure, and with `ranks` another one with a row per rank."""
    from rich.console import Group
    from rich.text import Text

    from dlemu.results.progress import Figure, figure_texts
    from dlemu.results.wording import VISIBLE

    run = f"{follower.workload} in {follower.folder}".translate(VISIBLE)
    title = Text(f"{run}\n{_head(progress) if progress else 'the run is starting'}")
    if progress is None:
        return Group(title)
    rows = [(name + _of(figure), value) for figure in progress.figures for name, value in [figure_texts(figure)]]
    if not ranks:
        return Group(title, _grid(rows))
    names = list(dict.fromkeys(figure.name for figures in progress.ranks.values() for figure in figures))
    heads = [figure_texts(Figure(name, 0))[0] for name in names]
    by_rank = [
        (f"rank {rank}", *(figure_texts(of[name])[1] if name in of else "" for name in names))
        for rank, figures in sorted(progress.ranks.items())
        for of in [{figure.name: figure for figure in figures}]
    ]
    return Group(title, _grid(rows), Text(), _grid([("", *heads), *by_rank]))


def _grid(rows: Iterable[Sequence[str]]) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for number, row in enumerate(rows):
        for _ in row if number == 0 else ():
            grid.add_column(justify="right" if grid.columns else "left", no_wrap=True)
        grid.add_row(*row)
    return grid
