"""What advice to a first-time user needs: the command as typed, and consent to make large datasets."""

from __future__ import annotations

import os
import shutil
import sys

import psutil

from datagen.errors import UserError
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.report.units import size
from dlemu.results.wording import count
from dlemu.runner.datasets import free_bytes
from dlemu.runner.job import CONFIRM_ABOVE_BYTES, TRIAL_SCALE

_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun", "srun")


def typed_command() -> list[str]:
    """Return the command line as typed, including the launcher if it runs on this host; without secrets."""
    for process in psutil.Process().parents():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and os.path.basename(words[0]) in _LAUNCHERS:
            return without_secrets(words)
    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":
        return without_secrets(["python", "-m", "dlemu", *sys.argv[1:]])
    short = os.path.basename(program)
    return without_secrets([short if shutil.which(short) == program else program, *sys.argv[1:]])


def allow(workload: Workload, folder: str, ranks: int | None, making_bytes: int, *, yes: bool) -> None:
    """Prompt before so much is made (for `ranks`, if it depends on them); raises UserError for no, or no terminal."""
    if making_bytes <= CONFIRM_ABOVE_BYTES or yes:
        return
    free_text = f" ({size(free)} are free there)" if (free := free_bytes(workload, folder)) is not None else ""
    plan = f"{size(making_bytes)} will be made in {folder}" + (f" for {count(ranks, 'rank')}" if ranks else "")
    if sys.stdin.isatty() and sys.stderr.isatty():
        import click

        if click.confirm(f"{plan}{free_text}. Continue?", err=True):
            return
        raise UserError("nothing was made")
    smaller = (
        f"; to try it with less: scale={TRIAL_SCALE}" if TRIAL_SCALE in workload.scales and not workload.scale else ""
    )
    raise UserError(f"{plan}{free_text}: add --yes to make them{smaller}")
