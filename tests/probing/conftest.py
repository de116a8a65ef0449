"""A file to read, and fake fio programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.jobs.probe.result import CellSpec

MIB = 1 << 20
READ = CellSpec(access="randread", size_bytes=4096, depth=8, jobs=1)
Install = Callable[[str], Path]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB))
    return path


@pytest.fixture
def install_fio(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a script as fio, and returns its folder."""

    def install(script: str) -> Path:
        program = tmp_path_factory.mktemp("program") / "fio"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        return program.parent

    return install
