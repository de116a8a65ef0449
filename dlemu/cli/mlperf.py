"""`dlemu mlperf`: MLPerf Storage's rules before a run, a rehearsal of a submission, and a check of what came out."""

from __future__ import annotations

import click

from dlemu.cli.mlperf_check import check_command
from dlemu.cli.mlperf_datasize import datasize_command
from dlemu.cli.mlperf_run import run_command


@click.group(name="mlperf", short_help="Rehearse an MLPerf Storage submission, and check one.")
def command() -> None:
    """MLPerf Storage: the rules before a run, a rehearsal of a submission, a check of what came out.

    docs/mlperf.md says what dlemu is good for there, and what not: CLOSED results need mlpstorage and DLIO, unchanged.
    """


command.add_command(datasize_command)
command.add_command(run_command)
command.add_command(check_command)
