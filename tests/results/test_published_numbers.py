"""Numbers that were published stay what they were: runs made by hand against what was once computed of them.

What a number must be by its formula is tested in tests/metrics; here nothing may change by the way.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from dlemu.jobs.checkpoint.folder import read_checkpoint_run
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.training.folder import read_run, read_summary
from dlemu.jobs.training.result import Run
from dlemu.results.measured import write_measured, write_run, write_summary
from tests.results.handmade import CHECKPOINT_RUNS, RUNS, kept, published

FIGURES = re.compile(r"\d(?:[\d.,:]*\d)?")


def differences(was: Any, is_now: Any, where: str = "") -> list[str]:
    """Where two trees of JSON differ, by their keys.

    Numbers may be rounded otherwise, keys may be added, and sentences be put in other words about the same figures.
    """
    if isinstance(was, dict) and isinstance(is_now, dict):
        return [line for key, old in was.items() for line in differences(old, is_now.get(key), f"{where}.{key}")]
    if isinstance(was, list) and isinstance(is_now, list) and len(was) == len(is_now):
        pairs = enumerate(zip(was, is_now, strict=True))
        return [line for index, (old, new) in pairs for line in differences(old, new, f"{where}[{index}]")]
    numbers = [value for value in (was, is_now) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == 2 and math.isclose(*numbers, rel_tol=1e-10, abs_tol=1e-10):
        return []
    if isinstance(was, str) and isinstance(is_now, str) and " " in was:
        was, is_now = FIGURES.findall(was), FIGURES.findall(is_now)
    return [] if was == is_now and type(was) is type(is_now) else [f"{where}: was {was!r}, is {is_now!r}"]


@pytest.mark.parametrize("name", RUNS)
def test_of_a_run_of_training(name: str) -> None:
    assert differences(kept(name), published(RUNS[name]())) == []


@pytest.mark.parametrize("name", CHECKPOINT_RUNS)
def test_of_a_run_of_checkpoints(name: str) -> None:
    assert differences(kept(name), published(CHECKPOINT_RUNS[name]())) == []


def test_a_difference_is_found_wherever_it_is() -> None:
    was = {"a": [1.0, {"b": 2}], "c": None, "d": True}
    assert differences(was, was) == []
    assert differences(was, {**was, "a": [1.0 + 1e-12, {"b": 2}]}) == []
    assert differences(was, {**was, "a": [1.0, {"b": 3}]}) == [".a[1].b: was 2, is 3"]
    assert len(differences(was, {**was, "a": [1.0]})) == 1
    assert len(differences(was, {**was, "c": 0.0, "d": 1, "e": "a new key"})) == 2
    assert differences({"a": "AU 90.5 % of 3"}, {"a": "of 3 it is 90.5 that is AU"}) != []
    assert differences({"a": "AU 90.5 % of 3 ranks"}, {"a": "utilisation: 90.5 % of 3"}) == []
    assert differences({"a": "AU 90.5 % of 3 ranks"}, {"a": "AU 90.6 % of 3 ranks"}) != []


@pytest.mark.parametrize(
    "name", ["two_hosts", "one_machine", "evaluated", "cached", "busy_host", "slow_host", "failed_later"]
)
def test_they_survive_the_folder(name: str, tmp_path: Path) -> None:
    made = RUNS[name]()
    write_run(Run(str(tmp_path), made.facts, made.rows, made.telemetry))
    assert differences(kept(name), published(read_run(str(tmp_path)))) == []
    assert read_summary(str(tmp_path)) == made.summary


@pytest.mark.parametrize("name", ["checkpoints_watched", "checkpoints_killed", "checkpoints_failed"])
def test_those_of_checkpoints_survive_the_folder(name: str, tmp_path: Path) -> None:
    made = CHECKPOINT_RUNS[name]()
    run = CheckpointRun(str(tmp_path), made.facts, made.rows, made.progress, made.telemetry)
    write_measured(run)
    write_summary(run)
    again = read_checkpoint_run(str(tmp_path))
    assert again.facts == made.facts
    assert again.records == made.records
    assert differences(kept(name), published(again)) == []
