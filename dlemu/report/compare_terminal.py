"""What the terminal shows of a comparison: a table for each pair of runs, the year, and what the money buys."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlemu.report.comparison import NAMES
from dlemu.sizing.sides import METRICS


def print_comparison(found: dict[str, Any], console: Console) -> None:
    """Print what `dlemu compare --json` prints, for eyes."""
    console.print(Text(f"A: {found['a']}\nB: {found['b']}"), soft_wrap=True)
    for run in found["runs"]:
        console.print(_table(run))
        _say_plan(run["plan"], console, shown=run["metrics"].get("total_seconds", {}).get("distinct") is not False)
    _say_economy(found["economy"], console)
    for issue in found["issues"]:
        console.print(Text(f"- {issue}", style="bold yellow"), soft_wrap=True)
    console.print(Text(found["verdict"], style="bold"), soft_wrap=True)


def _table(run: dict[str, Any]) -> Table:
    told = " ".join(f"{key}={value}" for key, value in run["settings"].items())
    ranks = sorted(set(run["ranks"]))
    title = told or f"{' and '.join(str(count) for count in ranks)} accelerators"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    for name in ("metric", "A", "B", "A to B", "+-"):
        table.add_column(name, justify="left" if name == "metric" else "right", no_wrap=True)
    for name, one in run["metrics"].items():
        table.add_row(
            f"{NAMES[name]} ({METRICS[name]})",
            _number(one["a"]),
            _number(one["b"]),
            "-" if one["difference_percent"] is None else f"{one['difference_percent']:+.1f} %",
            "-" if one["half_width_percent"] is None else f"{one['half_width_percent']:.1f}",
        )
    verdicts = [{True: "pass", False: "fail", None: "no verdict"}[passed] for passed in run["passed"]]
    table.add_row("verdict", *verdicts, "", "")
    return table


def _say_plan(plan: dict[str, Any] | None, console: Console, *, shown: bool) -> None:
    """Print the year; what is saved in it only where a difference is shown."""
    if plan is None:
        return
    a, b = plan["hours_per_model"]
    models = plan["models_per_year"]
    trained = f"{models[0]:.0f} and {models[1]:.0f} models a year"
    console.print(Text(f"{plan['epochs']} epochs take A {a:.3g} h and B {b:.3g} h: {trained}"))
    if shown:
        days = plan["days_saved_per_year"]
        told = f"saves {days:.1f} days of it" if days >= 0 else f"takes {-days:.1f} days more"
        console.print(Text(f"what B trains in a year, A {told}"))


def _say_economy(economy: list[dict[str, Any]], console: Console) -> None:
    for name, one in zip("AB", economy, strict=True):
        parts = [f"{one['accelerators_fed']} accelerators fed" if one["accelerators_fed"] else "no count passed"]
        if one["gb_per_second"] is not None:
            parts.append(f"{one['gb_per_second']:.3g} GB/s")
        if one["cost_per_accelerator"] is not None:
            parts.append(f"{one['cost_per_accelerator']:,.2f} for each accelerator fed")
        if one["gb_per_second_per_watt"] is not None:
            parts.append(f"{one['gb_per_second_per_watt']:.3g} GB/s per watt")
        console.print(Text(f"{name}: {', '.join(parts)}"), soft_wrap=True)


def _number(value: float) -> str:
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{digits}f}"
