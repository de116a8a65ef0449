"""Hosts of these tests are made up, and so is what /proc/meminfo tells of them."""

from __future__ import annotations

import pytest

from dlemu.dlio import files


@pytest.fixture(autouse=True)
def made_up_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of a made-up host tell the memory of this one."""
    proc_facts = files.proc_facts
    monkeypatch.setattr(files, "proc_facts", lambda name: {} if name == "meminfo" else proc_facts(name))
