"""The proof holds its own arithmetic, and dlemu holds in a short case of it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError


@pytest.mark.parametrize(
    ("measured", "how", "holds"),
    [
        (78.1, {"within": 2}, True),
        (77.9, {"within": 2}, False),
        (78.5, {"within": 2, "percent": True}, True),
        (60.0, {"within": 1, "at_most": True}, True),
        (81.1, {"within": 1, "at_most": True}, False),
        (None, {"within": 2}, False),
    ],
)
def test_a_check_holds_within_its_bound(
    module: Callable[[str], Any], measured: float | None, how: dict[str, Any], holds: bool
) -> None:
    check = module("check").Check(case="c", what="au", theory=80.0, measured=measured, unit="%", **how)
    assert check.holds == holds
    assert check.cells[-1] == ("ok" if holds else "MISSED")


def test_every_group_was_measured(module: Callable[[str], Any]) -> None:
    kept = Path(__file__).parents[2] / "docs" / "evidence" / "validation"
    assert [name for name in module("__main__").GROUPS if not (kept / f"{name}.json").exists()] == []


def test_a_group_that_fails_does_not_keep_the_others_from_being_measured(
    module: Callable[[str], Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check = module("check").Check("c", "au", 1.0, 1.0, within=1)
    main = importlib.import_module("measuring.main")

    def fails(bed: object) -> Iterator[Any]:
        yield check
        raise UserError("the drive is full")

    groups = {
        "broken": main.Group(fails),
        "not here": main.Group(lambda bed: iter([check]), lambda: "there is no fio"),
        "ratios": main.Group(lambda bed: iter([check]), by_name=True),
    }
    assert main.measure("validate", list(groups), groups, None, folder=str(tmp_path)) == 2
    said = capsys.readouterr()
    assert "broken: the drive is full" in said.err
    assert "not here: skipped: there is no fio" in said.out
    assert said.out.endswith("nothing missed of what was measured\n")
    assert [path.name for path in tmp_path.iterdir()] == ["ratios.json"]
    assert main.wanted_names(argparse.ArgumentParser(), [], groups) == ["broken", "not here"]
