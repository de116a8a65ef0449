"""`dlemu-mpirun`: runs the mpirun on the PATH; if it is MPICH's, without the options that only Open MPI has.

mlpstorage passes `--allow-run-as-root`, `--oversubscribe`, `-x AWS_...` and what its users add to whatever mpirun it is
given (`MPI_RUN_BIN`); MPICH refuses them all, and mlpstorage then reports success.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from datagen.errors import UserError
from dlemu.runner.child_run import output_of

_OPEN_MPI_OPTIONS = {
    **dict.fromkeys(
        ("allow-run-as-root", "oversubscribe", "nooversubscribe", "use-hwthread-cpus", "report-bindings"), 0
    ),
    **dict.fromkeys(("display-map", "display-allocation", "tag-output", "merge-stderr-to-stdout", "quiet", "q"), 0),
    **dict.fromkeys(("x", "rank-by", "prefix", "timeout"), 1),
    **dict.fromkeys(("mca", "gmca", "pmixmca", "prtemca"), 2),
}
"""Options that only Open MPI has, after one dash or two -> how many arguments each takes."""


def command_line(arguments: Sequence[str], mpirun: str, *, mpich: bool) -> list[str]:
    """Return mpirun's command line; only the options before the program's name are examined.

    `--mca btl tcp -np 2 -x KEY=1 PROGRAM` becomes `-np 2 -genv KEY 1 PROGRAM` for MPICH. Open MPI's `-x NAME` without a
    value is left out, as MPICH passes the whole environment on.
    """
    if not mpich:
        return [mpirun, *arguments]
    command = [mpirun]
    index = 0
    may_be_value = False  # of an option of MPICH's, which stands before it
    while index < len(arguments) and (arguments[index].startswith("-") or may_be_value):
        argument = arguments[index]
        option = argument.lstrip("-")
        if may_be_value or option not in _OPEN_MPI_OPTIONS:
            command.append(argument)
            may_be_value = argument.startswith("-")
            index += 1
            continue
        following = arguments[index + 1 :]
        if option == "x" and following and "=" in following[0]:
            command += ["-genv", *following[0].split("=", 1)]
        index += 1 + _OPEN_MPI_OPTIONS[option]
    return [*command, *arguments[index:]]


def is_mpich(mpirun: str) -> bool:
    """Return whether it is MPICH's, judging by the output of `--version`."""
    return "HYDRA" in output_of([mpirun, "--version"], 60.0).out


def main(arguments: Sequence[str]) -> None:
    """Replace this process by mpirun; raises UserError if there is none."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise UserError("there is no mpirun on the PATH: install one (dlemu[mpich] brings it), or set PATH")
    os.execv(mpirun, command_line(arguments, mpirun, mpich=is_mpich(mpirun)))
