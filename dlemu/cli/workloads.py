"""`dlemu workloads`: what there is to emulate, and what each accelerator asks of the storage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

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
    demands = _all_demands(config_dir)
    if as_json:
        click.echo(json.dumps([asdict(demand) for demand in demands], indent=2))
    else:
        _print(demands)


def _all_demands(config_dir: str | None) -> list[Demand]:
    from dlemu.config import load, workload_names
    from dlemu.metrics.demand import demand

    demands = []
    for name in workload_names(config_dir):
        workload = load([f"workload={name}"], config_dir=config_dir)
        for accelerator in workload.accelerators or [""]:
            words = [f"workload={name}", *([f"accelerator={accelerator}"] if accelerator else [])]
            demands.append(demand(name, load(words, config_dir=config_dir)))
    return demands


def _print(demands: list[Demand]) -> None:
    from rich.console import Console

    from dlemu.report.table import Table, columns, print_table

    stored = Table(
        title="what is stored, and what is read of a sample",
        columns=columns("workload", "format", "files", "samples", "kB read", "GB", right=range(2, 6), whole=range(6)),
        rows=[
            (
                data.workload,
                data.format,
                f"{data.num_files:,}",
                f"{data.num_samples:,}",
                _short(data.sample_bytes / 1e3),
                _short(data.dataset_gb) if data.dataset_gb < 1000 else f"{data.dataset_gb:,.0f}",
            )
            for data in {demand.workload: demand for demand in demands}.values()
        ],
        dense=True,
    )
    names = ("workload", "accelerator", "batch", "step s", "samples/s", "MB/s", "AU wanted")
    asked = Table(
        title="what one busy accelerator asks for",
        columns=columns(*names, right=range(2, 7), whole=range(7)),
        rows=[
            (
                demand.workload,
                demand.accelerator or "-",
                str(demand.batch_size),
                f"{demand.computation_seconds:g}",
                _rate(demand.samples_per_second),
                _rate(demand.mb_per_second),
                f"{demand.au_threshold_percent:g} %",
            )
            for demand in demands
        ],
        dense=True,
    )
    console = Console()
    print_table(stored, console)
    print_table(asked, console)


def _rate(value: float | None) -> str:
    return "no limit" if value is None else _short(value)


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}"
