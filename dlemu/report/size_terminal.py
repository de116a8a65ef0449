"""What the terminal shows of a search: one table and the answer."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_answer(answer: dict[str, Any], folder: str, console: Console) -> None:
    """Print the table of all counts and the answer, from size.json."""
    question = answer["question"]
    title = f"{question['workload']}: how many x {question['accelerator'] or 'accelerators'}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    for name in ("accelerators", "au %", "+-", "trials", "MB/s", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for count in answer["counts"]:
        table.add_row(*_row(count, answer["trials"]))
    console.print(table)
    for line in answer["limited_by"]["evidence"]:
        console.print(Text(f"- {line}"), soft_wrap=True)
    for issue in answer["issues"]:
        console.print(Text(f"- {issue}", style="bold yellow"), soft_wrap=True)
    more = answer["for_one_more"]
    wanted = f"{more['accelerators']} would take {more['wanted_mb_per_second']:,.1f} MB/s"
    console.print(Text(f"- {wanted}; the storage gave {answer['storage_mb_per_second']:,.1f} at most"), soft_wrap=True)
    style = "bold green" if answer["passed"] else "bold red"
    console.print(Text(answer["verdict"], style=style), soft_wrap=True)
    if answer["at_least"]:
        told = "PASS" if answer["passed"] else "FAIL"
        console.print(Text(f"{told}: {answer['max_accelerators']} of {answer['at_least']} wanted", style=style))
    console.print(Text(_effort(answer)), soft_wrap=True)
    console.print(Text(f"results: {folder}"), soft_wrap=True)


def _row(count: dict[str, Any], trials: list[dict[str, Any]]) -> tuple[str, ...]:
    rates = [trial["app_mb_per_second"] for trial in trials if trial["accelerators"] == count["accelerators"]]
    verdict = {True: "pass", False: "fail", None: "too close to tell"}[count["passed"]]
    return (
        str(count["accelerators"]),
        f"{count['au_percent']:.2f}",
        f"{count['half_width_percent']:.2f}",
        str(count["trials"]),
        f"{sum(rates) / len(rates):,.1f}",
        verdict,
    )


def _effort(answer: dict[str, Any]) -> str:
    seconds, naive = answer["seconds"], answer["naive_seconds"]
    return (
        f"{len(answer['trials'])} trials took {_time(seconds)}; every count up to the edge at full length would take "
        f"{_time(naive)}"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
