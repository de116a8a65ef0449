"""Where a run's blocks lie: away from where those of the run before it were."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlemu.comm.environment import describe_folder
from dlemu.jobs.kvcache import place
from dlemu.jobs.kvcache.settings import KvSettings


def spreads(folder: Path) -> bool:
    """Return whether ext4 makes folders there far from each other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags: bytes = fcntl.ioctl(descriptor, place._GET_FLAGS, bytes(8))
    finally:
        os.close(descriptor)
    return bool(int.from_bytes(flags, "little") & place._TOPDIR)


def job(folder: Path) -> Any:
    """Return what `begin` looks at."""
    storage = SimpleNamespace(storage_type="posix", resolved=lambda name: name)
    settings = KvSettings(folder=str(folder), odirect=False)
    return SimpleNamespace(seed=7, workload=SimpleNamespace(storage=storage, section=lambda kind: settings))


def test_a_runs_folder_is_far_from_those_beside_it_and_the_users_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if describe_folder(str(tmp_path)).file_system != "ext4":
        pytest.skip("only ext4 looks at what was deleted")
    seen, mkdir = dict[str, bool](), os.mkdir

    def spy(path: str, *rest: Any) -> None:
        seen[path] = spreads(Path(path).parent)
        mkdir(path, *rest)

    monkeypatch.setattr(os, "mkdir", spy)
    one = job(tmp_path / "kv")
    place.begin(one)
    with place.rank_place(one, 0, 3) as folder:
        assert seen[place.run_folder(one)]
        assert not seen[folder], "a rank's folder stays beside its run's"
    assert not spreads(tmp_path / "kv")


def test_a_folder_whose_file_system_has_no_such_flags_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*what: object) -> bytes:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    one = job(tmp_path / "kv")
    place.begin(one)
    assert os.path.isdir(place.run_folder(one))
