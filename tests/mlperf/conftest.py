"""Hosts of these tests are made up, and so is what /proc/meminfo tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.dlio import files
from dlemu.mlperf.rules.known import known_rules
from dlemu.results.finding import SEVERITIES, Finding


@pytest.fixture(autouse=True)
def made_up_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of a made-up host tell the memory of this one."""
    proc_facts = files.proc_facts
    monkeypatch.setattr(files, "proc_facts", lambda name: {} if name == "meminfo" else proc_facts(name))


@pytest.fixture(autouse=True)
def only_known_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be found by a name, or of a severity, that the table of rules does not have."""
    known, made = known_rules(), Finding.__init__

    def make(self: Finding, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        assert self.severity in SEVERITIES
        rule = known[self.rule.removeprefix("rules.")]  # an audit names an edition's rules so
        left_to_do = self.severity == "info"  # what a rehearsal leaves to its user
        assert self.severity in rule.severity or left_to_do or (rule.warned and self.severity == "warning")

    monkeypatch.setattr(Finding, "__init__", make)
