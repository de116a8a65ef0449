"""What /dev/shm lacks is said by its name, not in the words of the libraries that use it."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Facts
from dlemu.doctor.host import check_shared_memory
from dlemu.machine.cgroup_limits import shared_memory_problem
from dlemu.ranks.mpi import stale_shared_memory
from tests.datasets import small_disk


def test_only_one_without_room_is_a_problem(tmp_path: Path) -> None:
    assert shared_memory_problem(str(tmp_path)) == ""
    assert "/no/such/shm can't be written (No such file or directory)" in shared_memory_problem("/no/such/shm")


@pytest.mark.root
def test_a_full_or_read_only_one_is_named_with_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path, "64k") as tiny:
        assert f"{tiny} is full (65536 bytes left): free some" in shared_memory_problem(str(tiny))
        subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
        assert f"{tiny} can't be written (Read-only file system): mount a tmpfs" in shared_memory_problem(str(tiny))


def test_mpi_memory_is_stale_once_no_process_has_it_mapped(tmp_path: Path) -> None:
    path = tmp_path / "mpich_shm-test"
    with open(path, "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            os.utime(path, (0, 0))
            assert stale_shared_memory(str(tmp_path)) == []
    assert stale_shared_memory(str(tmp_path)) == [str(path)]
    assert str(path) in check_shared_memory(Facts(Workload()), str(tmp_path)).observed
    os.utime(path)
    assert stale_shared_memory(str(tmp_path)) == []
