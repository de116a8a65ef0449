"""Hosts of these tests are made up, and so is what /proc/meminfo tells of them."""

from __future__ import annotations

import pytest

from dlemu.mlperf import dlio_checkpoints, dlio_files
from dlemu.mlperf.dlio_files import proc_facts


@pytest.fixture(autouse=True)
def made_up_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of a made-up host tell the memory of this one."""
    for module in (dlio_files, dlio_checkpoints):
        monkeypatch.setattr(module, "proc_facts", lambda name: {} if name == "meminfo" else proc_facts(name))
