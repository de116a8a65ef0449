"""Checks of the settings, the loader's framework and MPI tell good from bad."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlemu.config.schema import Workload
from dlemu.doctor import examine, software
from dlemu.doctor.check_base import Facts

OPEN_MPI, MPICH = "mpirun (Open MPI) 4.1.4", "HYDRA build details: 5.0.2"
MPICH_LIBRARY = "MPICH Version:      5.0.2"


def test_two_mpi_wheels_in_one_environment_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed_version", lambda package: "1")
    assert software.check_mpi(Facts(Workload())).level == "fail"


@pytest.mark.parametrize(
    ("mpirun", "library", "level"),
    [
        ("", "", "ok"),
        (MPICH, MPICH_LIBRARY, "ok"),
        (OPEN_MPI, MPICH_LIBRARY, "fail"),
        (MPICH, "Intel(R) MPI Library 2021.10 for Linux", "fail"),
        (MPICH, "", "warn"),
        ("", MPICH_LIBRARY, "warn"),
    ],
)
def test_mpirun_and_library_must_be_of_one_maker(mpirun: str, library: str, level: str) -> None:
    check = software.judge_mpi(mpirun, library)
    assert check.level == level
    assert (level == "ok") == (not check.advice)


def test_a_loader_that_can_not_be_imported_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: str) -> None:
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr(software, "find", find)
    check = software.check_loader(Facts(Workload()))
    assert check.level == "fail"
    assert "libtorch_cpu.so" in check.observed
    assert "dlemu[torch]" in check.advice


@pytest.mark.slow
def test_what_this_version_can_not_train_fails() -> None:
    workload = replace(Workload(), unsupported=("framework tensorflow: not supported yet",))
    check = next(check for check in examine(workload) if check.name == "configuration")
    assert (check.level, "not supported yet" in check.observed) == ("fail", True)
