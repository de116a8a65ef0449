"""A small, seeded share of `scripts/fuzz`: what is damaged at any door is named, in time and in little memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzzing.doors import doors
from tests.fuzzing.mutations import damaged_bytes
from tests.fuzzing.rounds import round_of

CASES = 40


@pytest.mark.parametrize("door", doors())
def test_damage_is_named_and_nothing_else_happens(door: str, tmp_path: Path) -> None:
    assert round_of(door, 7, range(CASES), tmp_path / "data") == []


def test_a_case_is_the_same_each_time() -> None:
    data = bytes(range(256)) * 9
    first, again = (damaged_bytes(data, random.Random("format-npz 1 5")) for _ in range(2))
    assert first == again != data


def test_what_goes_wrong_at_a_door_is_told_with_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that finds nothing must be able to find something: an error, a hang, a crash."""
    import os
    import time

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
