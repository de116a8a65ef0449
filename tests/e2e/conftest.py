"""Every end-to-end test must leave /dev/shm as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import dlemu, small_run

_OURS = ("torch_", "psm_", "sem.", "mpich_shm", "sm_segment", "dlemu")
"""How the files begin that multiprocessing, PyTorch and the MPI libraries make there."""


def _shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(_OURS)}


@pytest.fixture(autouse=True)
def nothing_left_in_dev_shm() -> Iterator[None]:
    before = _shared_memory_files()
    yield
    assert _shared_memory_files() - before == set()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset made by the program itself; tests must not change it."""
    folder = tmp_path_factory.mktemp("dataset") / "small"
    made = dlemu("datagen", *small_run(folder, folder))
    assert made.status == 0, made.err
    return folder
