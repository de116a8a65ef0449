"""What /dev/shm lacks is said by its name, not in the words of the libraries that use it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlemu.comm.cgroup_limits import shared_memory_problem


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 64 KiB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_folder_with_room_is_no_problem(tmp_path: Path) -> None:
    assert shared_memory_problem(str(tmp_path)) == ""


@pytest.mark.root
def test_a_full_or_read_only_one_is_named_with_what_to_do(tiny: Path) -> None:
    assert f"{tiny} is full (65536 bytes left): free some" in shared_memory_problem(str(tiny))
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    assert f"{tiny} can't be written (Read-only file system): mount a tmpfs" in shared_memory_problem(str(tiny))


def test_where_there_is_none_it_is_named() -> None:
    assert "/no/such/shm can't be written (No such file or directory)" in shared_memory_problem("/no/such/shm")
