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


def _shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(_OURS) and not name.startswith(_DRIVE)}


def _held_by_somebody() -> set[str]:
    """Names in /dev/shm that a living process maps or has open."""
    held = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            mapped = (line.split()[-1] for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line)
            held |= {Path(path).name for path in mapped}
            held |= {Path(os.readlink(opened)).name for opened in (process / "fd").iterdir()}
    return held


@pytest.fixture(autouse=True)
def nothing_left_in_dev_shm() -> Iterator[None]:
    before = _shared_memory_files()
    yield
    left = _shared_memory_files() - before
    deadline = time.monotonic() + 2  # tests beside this one make such files too, and hold or unlink them at once
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= _shared_memory_files() - _held_by_somebody()
    assert left == set()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset made by the program itself; tests must not change it."""
    folder = tmp_path_factory.mktemp("dataset") / "small"
    made = dlemu("datagen", *small_run(folder, folder))
    assert made.status == 0, made.err
    return folder
