"""`dlemu workloads`: list the workloads, what each accelerator needs from the storage, and the sizes of checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dlemu.cli.options import config_dir_option

if TYPE_CHECKING:
    from dlemu.checkpoints.checkpoint_plan import CheckpointSize
    from dlemu.metrics.demand import Demand


@click.command(name="workloads", short_help="List the workloads and what each accelerator demands of the storage.")
@config_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, for programs.")
def command(config_dir: str | None, as_json: bool) -> None:
    """List the workloads and what each accelerator needs from the storage.

    Samples/s and MB/s (1e6 bytes) are what one accelerator reads when it never waits; N accelerators need N x threshold
    of that to reach the AU threshold. Workloads that only save and load checkpoints are in a second table: a
    checkpoint's tensors, all ranks together, in GB and GiB (which DLIO calls GB). Workloads for other kinds of jobs
    follow, each with its command.
    """
    from dlemu.checkpoints.checkpoint_plan import checkpoint_size
    from dlemu.config import load, workload_names
    from dlemu.metrics.demand import demand
    from dlemu.results.kinds import kind_wanted

    demands, sizes, commands = [], [], []
    for name in workload_names(config_dir):
        workload = load([f"workload={name}"], config_dir=config_dir)
        if workload.workflow.train:
            for accelerator in workload.accelerators or [""]:
                words = [f"workload={name}", *([f"accelerator={accelerator}"] if accelerator else [])]
                demands.append(demand(name, load(words, config_dir=config_dir)))
        elif workload.workflow.checkpoint:
            sizes.append(checkpoint_size(name, workload))
        else:
            commands.append({"workload": name, "command": kind_wanted(workload).command})
    if as_json:
        click.echo(json.dumps([*map(asdict, demands), *map(asdict, sizes), *commands], indent=2))
        return
    _print(demands)
    _print_sizes(sizes)
    for other in commands:
        click.echo(f"dlemu {other['command']} workload={other['workload']}")


def _print(demands: list[Demand]) -> None:
    from rich.console import Console

    from dlemu.report.table import Table, columns, print_table

    stored = Table(
        title="datasets, and kB read per sample",
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
        title="what one busy accelerator demands",
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


def _print_sizes(sizes: list[CheckpointSize]) -> None:
    from rich.console import Console

    from dlemu.report.table import Table, columns, print_table

    if not sizes:
        return
    names = ("workload", "parameters", "ranks", "TPxPPxDP", "ZeRO", "files", "GB", "GiB", "rank GiB")
    table = Table(
        title="size of one checkpoint, and of its largest rank",
        columns=columns(*names, right=(1, 2, 4, 5, 6, 7, 8), whole=range(9)),
        rows=[
            (
                size.workload,
                f"{size.parameters / 1e9:,.1f}e9",
                f"{size.ranks:,}",
                f"{size.tensor}x{size.pipeline}x{size.data}",
                str(size.zero_stage),
                f"{size.files:,}",
                f"{size.total_gb:,.0f}",
                f"{size.total_gib:,.0f}",
                f"{size.largest_rank_gib:,.1f}",
            )
            for size in sizes
        ],
        dense=True,
    )
    print_table(table, Console())


def _rate(value: float | None) -> str:
    return "no limit" if value is None else _short(value)


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}"
