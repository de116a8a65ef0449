"""Every end-to-end test must leave /dev/shm as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import dlemu, small_run
from tests.shared_memory import OF_MPI, left_in_memory, shared_memory


@pytest.fixture(autouse=True)
def nothing_left_in_dev_shm() -> Iterator[None]:
    before = shared_memory(*OF_MPI)
    yield
    assert left_in_memory(before, 2, *OF_MPI) == [], "tests beside this one hold what they make, or unlink it at once"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset made by the program itself; tests must not change it."""
    folder = tmp_path_factory.mktemp("dataset") / "small"
    dlemu("datagen", *small_run(folder, folder)).assert_ended(0)
    return folder
