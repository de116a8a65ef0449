"""The proof of `dlemu size` goes on after a case that fails, and says whether it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from datagen.errors import DlemuError


def answer(found: int, seconds: float = 100.0) -> dict[str, Any]:
    count = {"au_percent": 95.0, "half_width_percent": 1.0}
    return {
        "max_accelerators": found,
        "trials": [{"mb_per_accelerator": 10.0}],
        "edge": {"pass": count, "fail": None},
        "limited_by": {"what": "storage"},
        "seconds": seconds,
        "naive_seconds": 1000.0,
    }


def tally(sizes: Any, monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any] | None) -> Any:
    """Ask drives of 90 MB/s, which feed 10, one after the other; None is a case that fails."""
    left = iter(answers)

    def ask(case: object, drive: object) -> dict[str, Any]:
        found = next(left)
        if found is None:
            raise DlemuError("no room")
        return found

    monkeypatch.setattr(sizes, "ask", ask)
    told = sizes.Tally()
    for _ in answers:
        told.measure(sizes.Case(90), None)  # the drive is not touched
    return told


@pytest.mark.parametrize(
    ("answers", "holds", "words"),
    [
        ([answer(10)] * 10, True, "10 of 10 are exact."),
        ([answer(10)] * 9 + [answer(9)], True, "9 of 10 are exact, the others off by 1 at most"),
        ([answer(10)] * 9 + [answer(8)], False, "off by 2 at most"),
        ([answer(10)] * 8 + [answer(9)] * 2, False, "8 of 10 are exact"),
        ([answer(10)] * 9 + [answer(10, seconds=250)], False, "takes 4 to 10 times as long"),
        ([None, answer(10)], False, "1 of 2 are exact. 1 could not be measured."),
        ([None], False, "0 of 1 are exact. 1 could not be measured."),
    ],
)
def test_it_says_whether_it_holds(
    answers: list[dict[str, Any] | None],
    holds: bool,
    words: str,
    module: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = module("sizes")
    told = tally(sizes, monkeypatch, *answers)
    assert told.holds is holds
    assert words in told.summary
    assert len(told.rows) == len(answers)
    assert {len(row) for row in told.rows} == {len(sizes.HEAD)}


def test_no_number_asks_for_all_cases(module: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = module("sizes")
    assert sizes.arguments([]).cases == []
    assert sizes.arguments(["2", "0"]).cases == [sizes.CASES[2], sizes.CASES[0]]
    with pytest.raises(SystemExit):
        sizes.arguments(["99"])
    assert "wanted 0 to" in capsys.readouterr().err
