"""`dlemu doctor`: check this host before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlemu.cli.options import config_dir_option, json_option

if TYPE_CHECKING:
    from dlemu.report.table import Tone

_TONES: dict[str, Tone] = {"ok": "good", "skip": "plain", "warn": "caution", "fail": "bad"}


@click.command(name="doctor")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@config_dir_option
@json_option("all checks as a list")
def command(overrides: tuple[str, ...], config_dir: str | None, as_json: bool) -> None:
    """Check this host before a run: what was observed, what is wanted, what to do.

    \b
    dlemu doctor workload=unet3d accelerator=h100 ranks=18 dataset.data_folder=/mnt/nvme/unet3d

    The last check runs the workload's ranks and loader for a moment without storage: this gives the ceiling, the AU
    that the emulator itself can reach on this host. It needs no dataset; metric.ceiling_seconds=0 skips it.

    Exit status: 0 no check fails, 2 at least one does.
    """
    from rich.console import Console

    from dlemu.config import load
    from dlemu.doctor import examine
    from dlemu.report.table import Line, Table, columns, print_table

    console = Console(quiet=as_json)
    checks = []
    for check in examine(load(overrides, config_dir=config_dir)):
        text = check.observed
        if check.wanted:
            text += f"\nwanted: {check.wanted}"
        if check.advice:
            text += f"\nto do: {check.advice}"
        row = (Line(f"{check.level:<5}", _TONES[check.level]), f"{check.name:<14}", text)
        print_table(Table(columns=columns("", "", "", whole=(0, 1)), rows=[row], dense=True), console)
        checks.append(check)
    levels = [check.level for check in checks]
    counts = [f"{levels.count(level)} {level}" for level in ("warn", "fail")]
    if "skip" in levels:
        counts.append(f"{levels.count('skip')} skip")
    console.print(f"{len(levels)} checks: {', '.join(counts)}", highlight=False)
    if as_json:
        from dlemu.results.answer_files import to_json

        click.echo(to_json(checks), nl=False)
    raise SystemExit(2 if "fail" in levels else 0)
