"""The proof of `dlemu size` says whether it holds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


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


@pytest.mark.parametrize(
    ("answers", "missed"),
    [
        ([answer(10)] * 10, []),
        ([answer(10)] * 9 + [answer(9)], []),
        ([answer(10)] * 9 + [answer(8)], ["off by"]),
        ([answer(10)] * 8 + [answer(9)] * 2, ["exact"]),
        ([answer(10)] * 9 + [answer(10, seconds=250)], ["time, of every count at full length"]),
    ],
)
def test_it_says_whether_it_holds(
    answers: list[dict[str, Any]], missed: list[str], module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drives of 90 MB/s, which feed 10 accelerators, are asked one after the other."""
    sizes, left = module("sizes"), iter(answers)
    monkeypatch.setattr(sizes, "CASES", (sizes.Case(90),) * len(answers))
    monkeypatch.setattr(sizes, "ask", lambda case, drive: next(left))
    *lines, exact, off, fast = sizes.measure(SimpleNamespace(drive=None))
    assert [check.what for check in (exact, off, fast) if not check.holds] == missed
    assert [line.answer for line in lines] == answers
    assert {len(line.cells) for line in lines} == {len(sizes.Answer.columns)}
