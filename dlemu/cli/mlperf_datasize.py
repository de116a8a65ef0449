"""`dlemu mlperf datasize`: the dataset that MLPerf Storage's rules want."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dlemu.cli.options import configured

if TYPE_CHECKING:
    from dlemu.config.schema import Workload
    from dlemu.mlperf.datasize import Datasize


@click.command(name="datasize", short_help="The least dataset that the rules allow, and how to make it.")
@configured
@click.option("--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts that the ranks run on.")
@click.option("--memory-gib", type=click.FloatRange(min=0.001), help="Of each host, in GiB; default: this host's.")
@click.option("--edition", type=click.Choice(["1.0", "2.0", "3.0"]), help="Default: the newest that has the pair.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON mapping, for programs.")
def datasize_command(
    overrides: tuple[str, ...],
    config_dir: str | None,
    cfg: bool,
    hosts: int,
    memory_gib: float | None,
    edition: str | None,
    as_json: bool,
) -> None:
    """Say how large the dataset must be for `ranks` accelerators, and print the commands that make and read it.

    \b
    dlemu mlperf datasize workload=unet3d accelerator=h100 ranks=8 dataset.data_folder=/mnt/nvme/unet3d
    dlemu mlperf datasize workload=unet3d accelerator=b200 ranks=16 --hosts 2 --memory-gib 512

    `ranks` are the accelerators of all hosts together. The rules want the larger of 5 times all hosts' memory and 500
    steps of each accelerator in an epoch; where memory decides, 1 % is added.

    Exit status: 0 done, 1 the settings break a rule, 2 a usage error.
    """
    from dlemu.config import load, to_yaml
    from dlemu.mlperf.datasize import datasize

    workload = load(overrides, config_dir=config_dir)
    if cfg:
        click.echo(to_yaml(workload), nl=False)
        return
    memory = measured_gib() if memory_gib is None else memory_gib
    found = datasize(workload, edition=edition, hosts=hosts, memory_gib_per_host=memory)
    if as_json:
        told = {**asdict(found), "bound": {**asdict(found.bound), "files": found.bound.files}}
        click.echo(json.dumps({**told, "datagen": _datagen(overrides, found)}, indent=2))
    else:
        for line in _lines(workload, overrides, found, "measured here" if memory_gib is None else "as given"):
            click.echo(line)
    raise SystemExit(1 if any(finding.severity == "error" for finding in found.findings) else 0)


def measured_gib() -> float:
    """Return this host's memory in GiB."""
    import psutil

    total_bytes: int = psutil.virtual_memory().total
    return total_bytes / 2**30


def _lines(workload: Workload, overrides: tuple[str, ...], found: Datasize, measured: str) -> Iterator[str]:
    bound, hosts = found.bound, f"{found.hosts} host{'s' if found.hosts > 1 else ''}"
    kind = f"{found.accelerators} x {found.accelerator}"
    yield f"{found.workload}, {kind} on {hosts} of {found.memory_gib_per_host:,.2f} GiB ({measured})"
    yield f"rules: MLPerf Storage v{found.edition}"
    yield ""
    yield f"  by memory       {bound.files_by_memory:>12,} files   5 x the memory of all hosts"
    yield f"  by steps        {bound.files_by_steps:>12,} files   500 steps of each accelerator in an epoch"
    yield f"  least           {bound.files:>12,} files   {bound.because}"
    extra = "   1 % more, for memory that is measured a little larger" if found.files > bound.files else ""
    yield f"  advised         {found.files:>12,} files{extra}"
    if found.subfolders:
        yield f"  sub-folders     {found.subfolders:>12,}         at most 10,000 files in each"
    yield f"  steps an epoch  {found.steps_per_epoch:>12,}"
    yield f"  size            {found.nominal_bytes / 1e9:>12,.1f} GB      {found.nominal_bytes / 2**40:,.2f} TiB"
    yield from _room(workload, found)
    yield from _findings(found)
    yield ""
    yield "make it:"
    yield f"  {_datagen(overrides, found)}"
    yield "or, with MLCommons' tool:"
    yield f"  mlpstorage training datagen --model {found.workload} ... --params {' '.join(found.overrides)}"


def _room(workload: Workload, found: Datasize) -> Iterator[str]:
    import psutil

    from dlemu.emulator.environment import existing_folder

    folder = existing_folder(workload.dataset.data_folder)
    free_bytes = psutil.disk_usage(folder).free
    if free_bytes < found.nominal_bytes:
        yield f"  room            {free_bytes / 1e9:>12,.1f} GB      free in {folder}: NOT ENOUGH"


def _findings(found: Datasize) -> Iterator[str]:
    for finding in found.findings:
        yield f"{finding.severity} {finding.rule}: {finding.seen}; wanted {finding.wanted}; {finding.fix}"


def _datagen(overrides: tuple[str, ...], found: Datasize) -> str:
    from dlemu.config import datagen_command

    return datagen_command([*overrides, *found.overrides])
