"""What a run of stat calls says, for the terminal and for its page."""

from __future__ import annotations

from rich.console import Console

from dlemu.report.environment import environment_of
from dlemu.report.page import Opened, Page, Text
from dlemu.report.table import Line, Table, columns, print_lines, print_table
from dlemu.report.units import number
from dlemu.results.tables import read_config
from dlemu_stat.job import StatSummary, read


def print_summary(summary: StatSummary, folder: str, console: Console) -> None:
    """Print a table and the verdict."""
    print_table(_table(summary), console)
    print_lines([Line(summary.verdict, "strong"), f"results: {folder}"], console)


def open_page(folder: str) -> Opened:
    """Return the run in a folder with its page; raises UserError."""
    run = read(folder)
    summary: StatSummary = run.summary
    page = Page(
        title=f"{summary.workload}: stat calls of {summary.ranks} ranks",
        lead=summary.started_at,
        state="neutral" if summary.complete else "open",
        verdict=(summary.verdict, ""),
        tables=[_table(summary), *environment_of(summary.environment, "the files")],
        texts=[Text("Configuration", read_config(folder))],
        source=folder,
    )
    return Opened(run, page, "dlemu_stat.figures")


def _table(summary: StatSummary) -> Table:
    rows = [("calls", f"{summary.calls}"), ("mean", f"{number(summary.mean_us)} us")]
    return Table(columns=columns("metric", "value", right=(1,)), rows=rows)
