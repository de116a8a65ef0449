"""What the terminal shows of a sweep: one table, a line a point."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLUMNS = (
    ("total s", "total_seconds", 1),
    ("au %", "au_percent", 2),
    ("samples/s", "samples_per_second", 2),
    ("app MB/s", "app_mb_per_second", 1),
    ("device MB/s", "device_mb_per_second", 1),
    ("max", "max_device_mb_per_second", 1),
    ("read ms", "mean_device_read_latency_ms", 2),
)


def print_sweep(swept: dict[str, Any], folder: str, console: Console) -> None:
    """Print a sweep from its sweep.json. `-` stands for what the run's telemetry does not know."""
    axes = list(swept["points"][0]["settings"])
    table = Table(box=SIMPLE_HEAD)
    for axis in axes:
        table.add_column(axis.split(".")[-1], justify="right", overflow="fold")
    for name, _, _ in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for point in swept["points"]:
        table.add_row(*(Text(point["settings"][axis]) for axis in axes), *_cells(point["figures"]), _verdict(point))
    console.print(table)
    for point in swept["points"]:
        if point["failure"]:
            console.print(Text(f"{point['folder']} failed: {point['failure']}", style="bold red"), soft_wrap=True)
    console.print(Text(f"results: {folder}"), soft_wrap=True)


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
    told = f"{word}, limited by {limit}" if limit and word != "pass" else word
    return Text(told, style="green" if word == "pass" else "red" if word == "fail" else "yellow")
