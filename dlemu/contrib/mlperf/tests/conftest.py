"""Hosts of these tests are made up, and so is what /proc/meminfo tells of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dlemu.checkpoints import checkpoint_plan
from dlemu.checkpoints.shards import shards_of_rank
from dlemu.config import load
from dlemu.contrib.mlperf.audit import audited_run, tolerant
from dlemu.contrib.mlperf.rules import checkpoints
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Finding, known_rules
from dlemu.contrib.mlperf.tests.golden import make_tree
from dlemu.machine import environment


@pytest.fixture(autouse=True)
def made_up_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of a made-up host tell the memory of this one."""
    proc_facts = environment.proc_facts
    monkeypatch.setattr(environment, "proc_facts", lambda name: {} if name == "meminfo" else proc_facts(name))


@pytest.fixture(autouse=True)
def only_known_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be found by a name, or of a severity, that the table of rules does not have."""
    known, made = known_rules(), Finding.__init__

    def make(self: Finding, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        assert self.severity in SEVERITIES
        rule = known[self.rule]
        left_to_do = self.severity == "info"  # what a rehearsal leaves to its user
        assert self.severity in rule.severity or left_to_do or (bool(rule.warned) and self.severity == "warning")

    monkeypatch.setattr(Finding, "__init__", make)


@pytest.fixture(scope="package")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    for edition in ("2.0", "3.0"):
        make_tree(folder / edition, edition)
    return folder


@pytest.fixture(autouse=True, scope="package")
def parsed_once() -> Iterator[None]:
    """Parse and plan what is the same in all these tests once: shipped workloads, copied files, models' checkpoints."""
    with pytest.MonkeyPatch.context() as patched:
        shipped = audited_run.shipped_accelerator_settings()
        patched.setattr(audited_run, "shipped_accelerator_settings", lambda: shipped)
        patched.setattr(tolerant, "json", SimpleNamespace(loads=lru_cache(maxsize=256)(json.loads)))
        parse = lru_cache(maxsize=256)(yaml.load)
        patched.setattr(tolerant, "yaml", SimpleNamespace(load=parse, YAMLError=yaml.YAMLError))
        loaded = cache(lambda *words: load(words))
        patched.setattr(checkpoints, "load", lambda words: loaded(*words))
        patched.setattr(checkpoint_plan, "shards_of_rank", lru_cache(maxsize=256)(shards_of_rank))
        yield
