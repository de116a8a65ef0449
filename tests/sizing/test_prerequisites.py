"""What is checked before the first trial."""

from __future__ import annotations

from typing import Any

import pytest

from datagen.errors import UserError
from dlemu.config.overrides import take_word
from dlemu.runner.cold import treatment
from dlemu.studies.prerequisites import check_launcher, measure_capacity

PLACE: dict[str, Any] = {
    "direct": False,
    "cached": False,
    "total_bytes": 10,
    "memory_bytes": 10,
    "memory_kind": "",
}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "evicted"),
        ({"direct": True}, "direct"),
        ({"remote": True, "total_bytes": 50}, "remote"),
        ({"total_bytes": 50}, "large"),
        ({"cached": True, "memory_kind": "tmpfs"}, "cached"),
    ],
)
def test_how_trials_are_kept_out_of_memory(changes: dict[str, Any], wanted: str) -> None:
    assert treatment(**(PLACE | changes)) == wanted


def test_memory_is_no_storage() -> None:
    with pytest.raises(UserError, match="is memory"):
        treatment(**(PLACE | {"memory_kind": "tmpfs"}))


def test_a_dataset_is_enough_for_so_many() -> None:
    dataset = {"samples": 5200, "samples_per_file": 1, "batch_size": 4, "ahead": 3, "window_steps": 10}
    capacity = measure_capacity(epochs=1, **dataset)
    assert (capacity.most, capacity.steps) == (15, 85)
    assert capacity.files_for_one_more == 5440
    assert (
        measure_capacity(samples=5200, samples_per_file=1, batch_size=4, epochs=8, ahead=3, window_steps=10).most == 86
    )


def test_a_dataset_for_none_says_how_large_it_must_be() -> None:
    with pytest.raises(UserError, match=r"has 100 samples: wanted at least 340 .* dataset of 34 files"):
        measure_capacity(samples=100, samples_per_file=10, batch_size=4, epochs=1, ahead=3, window_steps=10)


def test_the_launcher_is_a_word_of_its_own() -> None:
    assert take_word(["a=1", 'launcher="mpirun -np {ranks}"'], "launcher") == ("mpirun -np {ranks}", ["a=1"])
    assert take_word(["a=1"], "launcher") == ("", ["a=1"])
    with pytest.raises(UserError, match="does not say where the count goes"):
        check_launcher("size", "mpirun -np 4")
    for wrong in ("mpirun 'a -np {ranks}", "mpirun -np {ranks} --host {host}", "mpirun -np {ranks} {}"):
        with pytest.raises(UserError, match="is no command"):
            check_launcher("size", wrong)


def test_under_a_launcher_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match="start it once"):
        check_launcher("size", "")
