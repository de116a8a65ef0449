"""What the terminal shows of a sweep: one table, a line a point."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dlemu.report.names import short_names

_COLUMNS = (
    ("total\ns", "total_seconds", 1),
    ("au\n%", "au_percent", 2),
    ("samples\n/s", "samples_per_second", 2),
    ("app\nMB/s", "app_mb_per_second", 1),
    ("device\nMB/s", "device_mb_per_second", 1),
    ("max\nMB/s", "max_device_mb_per_second", 1),
    ("read\nms", "mean_device_read_latency_ms", 2),
)


def print_sweep(swept: dict[str, Any], folder: str, console: Console) -> None:
    """Print a sweep from its sweep.json. `-` stands for what the run's telemetry does not know."""
    axes = list(swept["points"][0]["settings"])
    table = Table(box=SIMPLE_HEAD, padding=0)
    for axis in axes:
        table.add_column(axis.split(".")[-1].replace("_", "\n", 1), justify="right", no_wrap=True)
    for name, _, _ in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    named = {axis: short_names(point["settings"][axis] for point in swept["points"]) for axis in axes}
    for point in swept["points"]:
        settings = (Text(named[axis][point["settings"][axis]]) for axis in axes)
        table.add_row(*settings, *_cells(point["figures"]), _verdict(point))
    _print_whole(table, console)
    for point in swept["points"]:
        if point["failure"]:
            console.print(Text(f"{point['folder']} failed: {point['failure']}", style="bold red"), soft_wrap=True)
    console.print(Text(f"results: {folder}"), soft_wrap=True)


def _print_whole(table: Table, console: Console) -> None:
    """Print a table as wide as it is: a narrow terminal wraps its lines, but loses no column."""
    width, wanted = console.width, Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.width = max(width, wanted)
    console.print(table)
    console.width = width


def _cells(figures: dict[str, Any] | None) -> list[str]:
    return [_cell(None if figures is None else figures[key], digits) for _, key, digits in _COLUMNS]


def _cell(value: Any, digits: int) -> str:
    mean = value["mean"] if isinstance(value, dict) else value
    return "-" if mean is None else f"{mean:,.{digits}f}"


def _verdict(point: dict[str, Any]) -> Text:
    if point["figures"] is None:
        return Text("failed", style="bold red")
    word = {True: "pass", False: "fail", None: "no verdict"}[point["figures"]["passed"]]
    limit = (point["figures"]["limited_by"] or {}).get("what")
    told = f"{word}: {limit}" if limit and word != "pass" else word
    return Text(told, style="green" if word == "pass" else "red" if word == "fail" else "yellow")
