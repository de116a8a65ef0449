"""A small, seeded share of `scripts/fuzz`: what is damaged at any door is named, in time and in little memory."""

from __future__ import annotations

import os
import random
import sys
import time
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
from tests.fuzzing import ends
from tests.fuzzing.doors import doors
from tests.fuzzing.mutations import damaged_bytes
from tests.fuzzing.rounds import round_of

CASES, FORMAT_CASES, SCHEDULES = 100, 500, 1000


@pytest.mark.parametrize("door", doors())
def test_damage_is_named_and_nothing_else_happens(door: str, tmp_path: Path) -> None:
    cases = SCHEDULES if door == "schedules" else FORMAT_CASES if door.startswith("format-") else CASES
    assert round_of(door, 7, range(cases), tmp_path / "data") == []


def test_a_case_is_the_same_each_time() -> None:
    data = bytes(range(256)) * 9
    first, again = (damaged_bytes(data, random.Random("format-npz 1 5")) for _ in range(2))
    assert first == again != data


def test_what_goes_wrong_at_a_door_is_told_with_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr("tests.fuzzing.rounds.doors", lambda: {"broken": broken})
    monkeypatch.setattr("tests.fuzzing.rounds.MOST_SECONDS", 0.02)
    told = "".join("".join(round_of("broken", 1, range(n, n + 1), tmp_path)) for n in range(16))
    assert "broken seed 1 case" in told
    assert "KeyError: 'x'" in told
    assert "hangs" in told
    assert "the process ended with wait status" in told


FORKS = "import subprocess; subprocess.Popen(['sleep', '5'], stdout=-3, stderr=-3).wait()"


@pytest.mark.slow
def test_an_ending_that_leaves_somebody_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", FORKS]
    monkeypatch.setattr(ends, "commands", lambda data, images: {"forks": lambda folder: command})
    monkeypatch.setattr(ends, "LEFT_SECONDS", 0)
    drawn = ((number, ends.draw(1, number, ["forks"])) for number in count())
    number = next(n for n, ending in drawn if 0 <= ending.victim < 0.5 and 0.2 < ending.share < 0.6)
    assert ends.draw(1, number, ["forks"]) == ends.draw(1, number, ["forks"])
    (found,) = ends.endings_of(1, range(number, number + 1), tmp_path)
    assert f"ends seed 1 case {number}: forks at 0." in found
    assert "left: " in found


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["npy", "npz"])
@pytest.mark.parametrize("engine", ["fast", "library"])
def test_nothing_in_a_dataset_is_unpickled(name: str, engine: Literal["fast", "library"], tmp_path: Path) -> None:
    spec = make_dataset(tmp_path / "data", format=name, num_files_train=1)
    found = inspect(spec)
    objects = np.array([Trap(tmp_path / "owned")], dtype=object)
    path = Path(found.train.path(0))
    if name == "npy":
        np.save(path, objects, allow_pickle=True)
    else:
        np.savez(path, x=objects, y=np.zeros(1))
    fetch = FetchSpec.for_dataset(found, found.train, engine=engine)
    with pytest.raises(DatasetError, match=str(path)):
        Fetcher(fetch).fetch([0], AlignedBuffer().view(fetch.slot_bytes(1)))
    assert not (tmp_path / "owned").exists()
