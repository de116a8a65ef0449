"""`dlemu-mpirun`: the mpirun of the PATH, without what only Open MPI's understands where it is MPICH's.

mlpstorage passes `--allow-run-as-root` and `--oversubscribe` to whatever mpirun it is given (`MPI_RUN_BIN`); MPICH
needs neither and refuses both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from datagen.errors import UserError

_OF_OPEN_MPI = {"--allow-run-as-root": 0, "--oversubscribe": 0, "-oversubscribe": 0, "--mca": 2, "-mca": 2}
"""Options of Open MPI alone -> how many words follow them."""


def command_line(words: Sequence[str], mpirun: str, *, mpich: bool) -> list[str]:
    """Return the command that the words request; only options before the program's name are looked at."""
    if not mpich:
        return [mpirun, *words]
    kept, index = [mpirun], 0
    while index < len(words) and (words[index].startswith("-") or kept[-1].startswith("-")):
        skipped = _OF_OPEN_MPI.get(words[index])
        if skipped is None:
            kept.append(words[index])
        index += 1 + (skipped or 0)
    return [*kept, *words[index:]]


def is_mpich(mpirun: str) -> bool:
    """Return whether it is MPICH's, by what it says of its version."""
    version = subprocess.run(
        [mpirun, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return "HYDRA" in version.stdout


def main(words: Sequence[str]) -> None:
    """Become mpirun; raises UserError where there is none."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise UserError("there is no mpirun on the PATH: install one (dlemu[mpich] brings it), or set PATH")
    os.execv(mpirun, command_line(words, mpirun, mpich=is_mpich(mpirun)))
