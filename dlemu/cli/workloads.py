"""`dlemu workloads`: list the workloads, and show what one demands of the storage."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dlemu.cli.options import config_dir_option

if TYPE_CHECKING:
    from dlemu.checkpoints.checkpoint_plan import CheckpointSizes
    from dlemu.metrics.demand import Demand

_DEMAND_HEADS = ("workload", "accelerator", "GB", "kB a sample", "batch", "samples/s", "MB/s", "AU")
_SIZE_HEADS = ("workload", "parameters", "ranks", "TPxPPxDP", "ZeRO", "files", "GB", "GiB", "rank GiB")


@click.command(name="workloads")
@click.argument("words", nargs=-1, metavar="[WORKLOAD [KEY=VALUE]...]")
@config_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, for programs.")
def command(words: tuple[str, ...], config_dir: str | None, as_json: bool) -> None:
    """List the workloads and what each accelerator needs from the storage; or show one WORKLOAD, a name or a file.

    \b
    dlemu workloads
    dlemu workloads my.yaml dataset.data_folder=/data/images

    Samples/s and MB/s (1e6 bytes) are what one accelerator reads when it never waits; N accelerators need N x threshold
    of that to reach the AU threshold. Workloads that only save and load checkpoints are in a second table: a
    checkpoint's tensors, all ranks together, in GB and GiB (which DLIO calls GB). Workloads for other kinds of jobs
    follow, each with its command.
    """
    from rich.console import Console

    from datagen.errors import UserError
    from dlemu.checkpoints.checkpoint_plan import checkpoint_sizes
    from dlemu.config import load, workload_names
    from dlemu.metrics.demand import demand
    from dlemu.report.table import Table, columns, print_table
    from dlemu.report.units import explained, plain
    from dlemu.results.kinds import kind_needed

    selections = {name: [f"workload={name}"] for name in workload_names(config_dir)}
    if words:
        selections = {"": [word if "=" in word else f"workload={word}" for word in words]}
    demands: list[Demand] = []
    sizes: list[tuple[str, CheckpointSizes]] = []  # by workload
    others: list[tuple[str, str, list[str]]] = []  # of workloads for other kinds of jobs: name, command, overrides
    for listed_name, overrides in selections.items():
        try:
            workload = load(overrides, config_dir=config_dir)
        except UserError as error:
            if words:
                raise
            click.echo(f"{listed_name} is not listed: {error}", err=True)
            continue
        name = listed_name or workload.model.name
        command_name = kind_needed(workload).command
        if command_name == "checkpoint":
            sizes.append((name, checkpoint_sizes(workload)))
        elif command_name != "train":
            others.append((name, command_name, overrides))
        else:
            choices = () if words else workload.accelerators
            loaded = [load([*overrides, f"accelerator={choice}"], config_dir=config_dir) for choice in choices]
            demands += [demand(name, each) for each in loaded or [workload]]
    if as_json:
        listed = [*map(asdict, demands), *({"workload": name, **asdict(size)} for name, size in sizes)]
        listed += [{"workload": name, "command": command_name} for name, command_name, _ in others]
        click.echo(json.dumps(listed, indent=2))
        return
    notes = [f"- {note}" for note in workload.notes] if words else []
    if words and demands:
        parts = [*demands, workload.recorded] if workload.recorded.version else [*demands]
        key_rows = [(key.replace("_", " "), plain(value, key)) for part in parts for key, value, _ in explained(part)]
        print_table(Table(columns=columns("one accelerator", "", right=(1,)), rows=key_rows, notes=notes), Console())
        return
    for title, heads, rows in (
        ("what one busy accelerator demands, and the datasets", _DEMAND_HEADS, list(map(_demand_row, demands))),
        ("size of one checkpoint, and of its largest rank", _SIZE_HEADS, [_size_row(*item) for item in sizes]),
    ):
        if rows:
            head = columns(*heads, right=range(2, len(heads)), whole=range(len(heads)))
            print_table(Table(title=title, columns=head, rows=rows, notes=notes, dense=True), Console())
    for _, command_name, overrides in others:
        click.echo(f"dlemu {command_name} {shlex.join(overrides)}")


def _demand_row(needed: Demand) -> tuple[str, ...]:
    return (
        needed.workload,
        needed.accelerator or "-",
        _short(needed.dataset_gb),
        _short(needed.sample_bytes / 1e3),
        str(needed.batch_size),
        _short(needed.samples_per_second),
        _short(needed.mb_per_second),
        f"{needed.au_threshold_percent:g} %",
    )


def _size_row(name: str, checkpoint: CheckpointSizes) -> tuple[str, ...]:
    return (
        name,
        f"{checkpoint.parameters / 1e9:,.1f}e9",
        f"{checkpoint.ranks:,}",
        f"{checkpoint.tensor}x{checkpoint.pipeline}x{checkpoint.data}",
        str(checkpoint.zero_stage),
        f"{checkpoint.files:,}",
        f"{checkpoint.tensor_bytes / 1e9:,.0f}",
        f"{checkpoint.tensor_gib:,.0f}",
        f"{checkpoint.largest_rank_bytes / 2**30:,.1f}",
    )


def _short(value: float | None) -> str:
    if value is None:
        return "no limit"
    if value < 1:
        return f"{value:.2g}"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
