"""Any run as text and as a page, from what its kind of job declares: used where a kind has nothing of its own."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from dlemu.report.environment import environment_of
from dlemu.report.page import Opened, Page, Text
from dlemu.report.screen import print_screen
from dlemu.report.table import Line, Table, columns, print_lines, print_table
from dlemu.report.units import with_unit
from dlemu.results.kinds import Kind
from dlemu.results.measured import MeasuredRun
from dlemu.results.tables import read_config


def show(kind: Kind, answer: Any, folder: str, console: Console, *, details: bool = False) -> None:
    """Print a result that was saved in a folder: its first screen, and with `details` all of it."""
    parts = kind.load()
    if parts.screen is not None:
        print_screen(parts.screen(answer, folder), console)
        if not details:
            return
    if parts.show is not None:
        parts.show(answer, folder, console)
    else:
        print_table(_metrics(kind, answer), console)
        print_lines([Line(answer.verdict, "strong"), f"results: {folder}"], console)


def open_run(kind: Kind, folder: str) -> Opened:
    """Return the run in a folder with its page; raises UserError."""
    run: MeasuredRun = kind.load().read(folder)
    summary: Any = run.summary
    page = Page(
        title=f"{summary.workload}: {kind.noun} with {summary.ranks} ranks",
        lead=summary.started_at,
        state="neutral" if summary.complete else "open",
        verdict=(summary.verdict, ""),
        tables=[_metrics(kind, summary), *environment_of(summary.environment, "what was measured")],
        texts=[Text("Configuration", read_config(folder))],
        source=folder,
    )
    return Opened(run, page)


def _metrics(kind: Kind, summary: Any) -> Table:
    shown = [(metric, getattr(summary, metric.name)) for metric in kind.load_job().catalogue]
    rows = [
        (metric.title, with_unit(value, metric.unit), metric.meaning) for metric, value in shown if value is not None
    ]
    return Table(columns=columns("metric", "value", "meaning", right=(1,)), rows=rows)
