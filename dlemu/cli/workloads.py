"""`dlemu workloads`: what there is to emulate, and what each accelerator asks of the storage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dlemu.metrics.demand import Demand


@click.command(name="workloads", short_help="List the workloads and what each accelerator asks of the storage.")
@click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own, or DLIO's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, for programs.")
def command(config_dir: str | None, as_json: bool) -> None:
    """List the workloads and what each accelerator asks of the storage.

    Samples/s and MB/s (1e6 bytes) are what one accelerator takes when it never waits: N accelerators that are to reach
    the AU threshold take N times the threshold's share of it.
    """
    found = _all_demands(config_dir)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        _print(found)


def _all_demands(config_dir: str | None) -> list[Demand]:
    from dlemu.config import load, workload_names
    from dlemu.metrics.demand import demand

    found = []
    for name in workload_names(config_dir):
        workload = load([f"workload={name}"], config_dir=config_dir)
        for accelerator in workload.accelerators or [""]:
            words = [f"workload={name}", *([f"accelerator={accelerator}"] if accelerator else [])]
            found.append(demand(name, load(words, config_dir=config_dir)))
    return found


def _print(found: list[Demand]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    style: Any = {"title_justify": "left", "box": SIMPLE_HEAD, "padding": (0, 0)}
    data = Table(title="what is stored, and what is read of a sample", **style)
    for name in ("workload", "format", "files", "samples", "kB read", "GB"):
        data.add_column(name, justify="left" if name in ("workload", "format") else "right", no_wrap=True)
    for one in {one.workload: one for one in found}.values():
        numbers = (f"{one.num_files:,}", f"{one.num_samples:,}", _kb(one.sample_bytes / 1e3), _gb(one.dataset_gb))
        data.add_row(one.workload, one.format, *numbers)
    asked = Table(title="what one busy accelerator asks for", **style)
    for name in ("workload", "accelerator", "batch", "step s", "samples/s", "MB/s", "AU wanted"):
        asked.add_column(name, justify="left" if name in ("workload", "accelerator") else "right", no_wrap=True)
    for one in found:
        rates = (_rate(one.samples_per_second), _rate(one.mb_per_second), f"{one.au_threshold_percent:g} %")
        asked.add_row(one.workload, one.accelerator or "-", str(one.batch_size), f"{one.computation_seconds:g}", *rates)
    console = Console()
    console.print(data)
    console.print(asked)


def _rate(value: float | None) -> str:
    if value is None:
        return "no limit"
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}"


def _kb(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}"


def _gb(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
