"""A file to read, and programs in the place of fio."""

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
    """Return a function that has a script stand for fio; it returns the script's folder."""

    def install(script: str) -> Path:
        program = tmp_path_factory.mktemp("program") / "fio"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        return program.parent

    return install
