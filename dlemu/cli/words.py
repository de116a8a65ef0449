"""Words of the command line that are the commands' own, between the overrides of a run."""

from __future__ import annotations

from collections.abc import Sequence

from datagen.errors import UserError
from dlemu.comm import detect_launcher


def take_word(words: Sequence[str], key: str) -> tuple[str, list[str]]:
    """Return the value of KEY=VALUE, empty when it is not there, and the other words."""
    mine = [word.split("=", 1)[1] for word in words if word.startswith(f"{key}=")]
    return (mine[-1].strip("\"'") if mine else ""), [word for word in words if not word.startswith(f"{key}=")]


def check_launcher(command: str, launcher: str) -> None:
    """Refuse a launcher without a place for the count, and to run many runs under a launcher."""
    if launcher and "{ranks}" not in launcher:
        raise UserError(
            f"launcher={launcher!r} does not say where the count goes: wanted {{ranks}} in it, as in "
            'launcher="mpirun -np {ranks} --hostfile hosts"'
        )
    if detect_launcher() == "mpi":
        raise UserError(
            f"dlemu {command} was started by mpirun or srun: start it once, without; it starts the ranks of each run "
            f'itself, with launcher="mpirun -np {{ranks}} ..." on several hosts'
        )
