"""Checks of the settings, the loader's framework, MPI, cores and shared memory tell good from bad."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlemu.config.schema import Workload
from dlemu.doctor import examine, host, outcomes
from dlemu.doctor.check_base import Facts

OPEN_MPI, MPICH = "mpirun (Open MPI) 4.1.4", "HYDRA build details: 5.0.2"
MPICH_LIBRARY = "MPICH Version:      5.0.2"


def test_two_mpi_wheels_in_one_environment_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "installed_version", lambda package: "1")
    assert host.check_mpi(Facts(Workload())).level == "fail"


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
    check = host.judge_mpi(mpirun, library)
    assert check.level == level
    assert (level == "ok") == (not check.advice)


def test_a_loader_that_can_not_be_imported_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = importlib.import_module

    def broken(name: str, *words: str) -> Any:
        if name == "torch":
            raise OSError("libtorch_cpu.so: cannot open shared object file")
        return import_module(name, *words)

    monkeypatch.setattr(importlib, "import_module", broken)
    (check,) = outcomes({"loader": host.check_loader}, Facts(Workload()))
    assert check.level == "fail"
    assert "libtorch_cpu.so" in check.observed
    assert "dlemu[torch]" in check.observed


@pytest.mark.slow
def test_what_this_version_can_not_train_fails() -> None:
    workload = replace(Workload(), unsupported=("framework tensorflow: not supported yet",))
    check = next(check for check in examine(workload) if check.name == "configuration")
    assert (check.level, "not supported yet" in check.observed) == ("fail", True)


@pytest.mark.parametrize(
    ("ranks", "cores", "usable", "limit", "level", "observed"),
    [
        (18, 2, 2, None, "ok", "2 usable for 18 ranks"),
        (64, 2, 2, None, "warn", "2 usable for 64 ranks"),
        (1, 64, 2, None, "ok", "2 usable of 64"),
        (64, 64, 64, 2.5, "warn", "64 usable, with a CPU limit of 2.5 cores"),
        (1, 2, 2, 4.0, "ok", "2 usable for 1 rank"),
    ],
)
def test_many_ranks_on_few_cores_are_warned_of(
    ranks: int, cores: int, usable: int, limit: float | None, level: str, observed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)))
    monkeypatch.setattr(host, "cpu_limit", lambda: limit)
    check = host.check_cores(Facts(Workload(ranks=ranks)))
    assert (check.level, check.observed[: len(observed)]) == (level, observed)


@pytest.mark.parametrize(("percent", "level", "observed"), [(60.0, "warn", "4.8 of 8"), (5.0, "ok", "0.4 of 8")])
def test_busy_cores_are_warned_of(percent: float, level: str, observed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: percent)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    check = host.check_free_cores(Facts(Workload()))
    assert (check.level, check.observed[:8]) == (level, observed)


def test_no_shared_memory_fails(tmp_path: Path) -> None:
    assert host.check_shared_memory(Facts(Workload()), str(tmp_path / "none")).level == "fail"
    assert host.check_shared_memory(Facts(Workload())).level in ("ok", "warn")
