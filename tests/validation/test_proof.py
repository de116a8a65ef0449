"""The proof holds its own arithmetic, and dlemu holds in a short case of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parts import needs_all_parts


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


@needs_all_parts
def test_every_group_was_measured(module: Callable[[str], Any]) -> None:
    kept = Path(__file__).parents[2] / "docs" / "evidence" / "validation"
    assert [name for name in module("__main__").GROUPS if not (kept / f"{name}.json").exists()] == []
