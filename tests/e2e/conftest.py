"""Every end-to-end test must leave /dev/shm as it was."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import dlemu, small_run

_OURS = ("torch_", "psm_", "sem.", "mpich_shm", "sm_segment", "dlemu")
"""How the files begin that multiprocessing, PyTorch and the MPI libraries make there."""
_DRIVE = "dlemu-drive-"
"""How a test's own drive begins: the kernel holds it, no process does, and its tests see that it goes."""


def _shared_memory_files() -> dict[str, int]:
    """Return the names and inodes of such files."""
    with os.scandir("/dev/shm") as entries:
        ours = [entry for entry in entries if entry.name.startswith(_OURS) and not entry.name.startswith(_DRIVE)]
        return {entry.name: entry.inode() for entry in ours}


def _held_by_somebody() -> set[int]:
    """Inodes in /dev/shm that a living process maps or has open; a semaphore is mapped by a name it had before."""
    held = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            mapped = (line.split() for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line)
            held |= {int(words[4]) for words in mapped}
            held |= {opened.stat().st_ino for opened in (process / "fd").iterdir() if _in_shared_memory(opened)}
    return held


def _in_shared_memory(opened: Path) -> bool:
    return os.readlink(opened).startswith("/dev/shm/")


@pytest.fixture(autouse=True)
def nothing_left_in_dev_shm() -> Iterator[None]:
    before = _shared_memory_files()
    yield
    left = _shared_memory_files().keys() - before.keys()
    deadline = time.monotonic() + 2  # tests beside this one make such files too, and hold or unlink them at once
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        held = _held_by_somebody()
        left &= {name for name, inode in _shared_memory_files().items() if inode not in held}
    assert left == set()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset made by the program itself; tests must not change it."""
    folder = tmp_path_factory.mktemp("dataset") / "small"
    made = dlemu("datagen", *small_run(folder, folder))
    assert made.status == 0, made.err
    return folder
