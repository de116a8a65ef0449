"""`dlemu-mpirun`: runs the mpirun on the PATH, dropping the options that only Open MPI has if it is MPICH's.

mlpstorage passes `--allow-run-as-root` and `--oversubscribe` to whatever mpirun it is given (`MPI_RUN_BIN`); MPICH
needs neither and refuses both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from datagen.errors import UserError

_OPEN_MPI_OPTIONS = {"--allow-run-as-root": 0, "--oversubscribe": 0, "-oversubscribe": 0, "--mca": 2, "-mca": 2}
"""Options that only Open MPI has -> how many arguments each takes."""


def command_line(arguments: Sequence[str], mpirun: str, *, mpich: bool) -> list[str]:
    """Return mpirun's command line; only the options before the program's name are examined."""
    if not mpich:
        return [mpirun, *arguments]
    kept, index = [mpirun], 0
    while index < len(arguments) and (arguments[index].startswith("-") or kept[-1].startswith("-")):
        skipped = _OPEN_MPI_OPTIONS.get(arguments[index])
        if skipped is None:
            kept.append(arguments[index])
        index += 1 + (skipped or 0)
    return [*kept, *arguments[index:]]


def is_mpich(mpirun: str) -> bool:
    """Return whether it is MPICH's, judging by the output of `--version`."""
    version = subprocess.run(
        [mpirun, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return "HYDRA" in version.stdout


def main(arguments: Sequence[str]) -> None:
    """Replace this process by mpirun; raises UserError if there is none."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise UserError("there is no mpirun on the PATH: install one (dlemu[mpich] brings it), or set PATH")
    os.execv(mpirun, command_line(arguments, mpirun, mpich=is_mpich(mpirun)))
