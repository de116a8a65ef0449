"""mpirun and the library that mpi4py loads are the same MPI implementation, by the versions they print.

Neither is needed on one host. With different implementations each rank would believe that it is the only one.
"""

from __future__ import annotations

import os
import shutil
import sys

from dlemu.comm.failure import Role
from dlemu.doctor.check_base import Check, Facts
from dlemu.runner.child_run import OverdueError, output_of

NAME, ORDER = "MPI", 60
_MAKERS = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "MPICH": "MPICH", "HYDRA": "MPICH", "Intel": "Intel MPI"}
"""Word in the version text of mpirun or of the library -> implementation."""
_VERSION = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def check(facts: Facts) -> Check:
    return judge(mpirun=_mpirun(), library=_mpi_library())


def judge(mpirun: str, library: str) -> Check:
    """Compare the version texts of mpirun and of the library; each is empty where there is none."""
    observed = f"mpirun: {mpirun or 'none'}; library: {library or 'none'}"
    if not mpirun and not library:
        return Check(name=NAME, level="ok", observed="none; ranks=N on one host and torchrun need none")
    if not mpirun or not library:
        advice = "pip install 'dlemu[mpich]', or load your site's MPI module and install mpi4py against it"
        return Check(name=NAME, level="warn", observed=observed, wanted="both, for runs under mpirun", advice=advice)
    if _maker(mpirun) != _maker(library):
        advice = "put the mpirun of that library first on PATH, or install mpi4py against the other library"
        return Check(name=NAME, level="fail", observed=observed, wanted="both from one vendor", advice=advice)
    if _maker(mpirun) == "Open MPI" and os.geteuid() == 0:
        advice = "mpirun --allow-run-as-root, and --oversubscribe for more ranks than cores"
        return Check(name=NAME, level="warn", observed=observed, wanted="a user other than root", advice=advice)
    return Check(name=NAME, level="ok", observed=observed)


def _maker(text: str) -> str:
    """Return the MPI implementation with this version text; the text itself if it is unknown."""
    return next((maker for mark, maker in _MAKERS.items() if mark in text), text)


def _mpirun() -> str:
    """Return the version text of mpirun: the one on PATH, or else the one next to this Python."""
    path = shutil.which("mpirun") or shutil.which("mpirun", path=os.path.dirname(sys.executable))
    if path is None:
        return ""
    lines = _output([path, "--version"]).splitlines()
    version = next((line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("Version:")), "")
    return f"{lines[0].rstrip(': ')} {version}".strip() + f" ({path})" if lines else f"{path} reports nothing"


def _mpi_library() -> str:
    return _output([sys.executable, "-P", "-c", _VERSION]).split("\n", 1)[0].replace("\t", " ").strip()


def _output(command: list[str]) -> str:
    """Return the output of a command; empty when it fails or takes more than 30 s."""
    try:
        ended = output_of(command, 30, Role(command[0], ""))
    except (OSError, OverdueError):
        return ""
    return ended.out.strip() if ended.status == 0 else ""
