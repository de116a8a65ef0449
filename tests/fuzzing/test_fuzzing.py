"""A small, seeded share of `scripts/fuzz`: what is damaged at any interface is named, in time and in little memory."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from tests.datasets import make_dataset
from tests.fuzzing import ends, faults
from tests.fuzzing.interfaces import interfaces
from tests.fuzzing.rounds import round_of

CASES, FORMAT_CASES, SCHEDULES = 25, 40, 100
"""Enough for a mistake that any damage shows; `scripts/fuzz` looks for the rare ones."""


@pytest.mark.parametrize("interface", interfaces())
def test_damage_is_named_and_nothing_else_happens(interface: str, tmp_path: Path) -> None:
    cases = SCHEDULES if interface == "schedules" else FORMAT_CASES if interface.startswith("format-") else CASES
    assert round_of(interface, 7, range(cases), tmp_path / "data") == []


def test_what_goes_wrong_at_an_interface_is_reported_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fuzzer that finds nothing must be able to find something: an error, a hang, a crash."""

    def broken(folder: Path) -> object:
        def case(draw: random.Random) -> None:
            kind = draw.randrange(3)
            if kind == 0:
                raise KeyError("x")
            if kind == 1:
                time.sleep(60)
            os.abort()

        return case

    monkeypatch.setattr("tests.fuzzing.rounds.interfaces", lambda: {"broken": broken})
    monkeypatch.setattr("tests.fuzzing.rounds.MOST_SECONDS", 0.02)
    told = "".join("".join(round_of("broken", 1, range(n, n + 1), tmp_path)) for n in range(16))
    assert "broken seed 1 case" in told
    assert "KeyError: 'x'" in told
    assert "hangs" in told
    assert "the process ended with wait status" in told


HARMFUL = """
import os, subprocess, sys
subprocess.Popen(["sleep", "60"], stdout=-3, stderr=-3)
os.remove("../beside/notes.txt")
print("Traceback (most recent call last)")
sys.exit(99)
"""


def faults_with(monkeypatch: pytest.MonkeyPatch, script: str) -> range:
    """Have the campaign of odd surroundings run a script of Python's; return a case in which the script is reached."""

    def sources(folder: Path, only: Sequence[str]) -> dict[str, ends.Command]:
        (folder / "sources").mkdir(parents=True)
        return {"script": lambda _: [sys.executable, "-c", script]}

    monkeypatch.setattr(faults, "made_sources", sources)
    monkeypatch.setattr(ends, "LEFT_SECONDS", 0)
    number = next(n for n in count() if faults.draw(1, n, ["script"]).what == "narrow")
    return range(number, number + 1)


def test_what_goes_wrong_in_odd_surroundings_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = faults.faults_of(1, faults_with(monkeypatch, HARMFUL), tmp_path)
    assert "status 99: status 99; a traceback; left: " in found
    assert "beside/notes.txt is gone" in found


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["npy", "npz"])
@pytest.mark.parametrize("engine", ["fast", "library"])
def test_nothing_in_a_dataset_is_unpickled(name: str, engine: Literal["fast", "library"], tmp_path: Path) -> None:
    found = inspect(make_dataset(tmp_path / "data", format=name, num_files_train=1))
    objects = np.array([Trap(tmp_path / "owned")], dtype=object)
    path = Path(found.train.path(0))
    if name == "npy":
        np.save(path, objects, allow_pickle=True)
    else:
        np.savez(path, x=objects, y=np.zeros(1))
    fetch = FetchSpec(found, found.train, engine=engine)
    with pytest.raises(DatasetError, match=str(path)):
        Fetcher(fetch).fetch([0], AlignedBuffer().view(fetch.slot_bytes(1)))
    assert not (tmp_path / "owned").exists()
