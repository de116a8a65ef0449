"""A verdict says what the storage can, and nothing where it can't be told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dlemu.jobs.training.wording import verdict_line
from dlemu.metrics import verdict as verdicts
from dlemu.metrics.verdict import EXIT_STATUSES, Evidence, Verdict, VerdictCode, warm_up_bias


def evidence(**changes: Any) -> Evidence:
    values: dict[str, Any] = {
        "complete": True,
        "threshold_percent": 90.0,
        "by": "au",
        "au": 95.0,
        "au_sustained": 94.5,
        "au_whole": 94.0,
        "uncertainty_percent": None,
        "epochs": 5,
        "ceiling_au": 99.0,
        "from_storage_percent": 100.0,
        "cached": False,
        "kept_steps": 100,
        "prefetched_steps": 5,
    }
    return Evidence(**(values | changes))


def judge(evidence: Evidence, limited_by: str = "") -> Verdict:
    verdict = verdicts.judge(evidence, limited_by)
    assert verdict_line(verdict), "it has every number that its line takes"
    return verdict


def test_the_verdict_needs_an_emulator_that_could_have_passed() -> None:
    assert judge(evidence(ceiling_au=80.0)).passed is True
    assert judge(evidence(au=89.0)).passed is False
    assert judge(evidence(au=89.0, ceiling_au=85.0)).passed is None
    assert judge(evidence(au=89.0, ceiling_au=None)).passed is False
    assert judge(evidence(au=math.nan)).passed is None
    assert judge(evidence(complete=False)).passed is None


@pytest.mark.parametrize(("by", "au"), [("sustained", 94.5), ("au", 95.0), ("rules", 94.0)])
def test_the_verdict_has_the_au_it_is_by(by: str, au: float) -> None:
    verdict = judge(evidence(by=by))
    assert (verdict.code, verdict.passed) == (VerdictCode.PASS, True)
    assert verdict.numbers == {"by": by, "au_percent": au, "threshold_percent": 90.0}


def test_prefetch_buys_no_pass() -> None:
    bought = {"au": 96.5, "au_sustained": 80.0}
    both_sides = {"headline_au_percent": 96.5, "sustained_au_percent": 80.0}
    for by, code in (("sustained", VerdictCode.FAIL), ("au", VerdictCode.PASS)):
        verdict = judge(evidence(by=by, **bought))
        assert verdict.code == code
        assert both_sides.items() <= verdict.numbers.items()


@pytest.mark.parametrize("by", ["sustained", "au", "rules"])
def test_what_memory_served_is_no_verdict_unless_asked_for(by: str) -> None:
    half = judge(evidence(by=by, from_storage_percent=50.0))
    assert half.passed is None
    assert (half.code, half.numbers["from_storage_percent"]) == (VerdictCode.CACHE_SERVED, 50.0)
    assert judge(evidence(by=by, from_storage_percent=50.0, cached=True)).passed is True
    assert judge(evidence(by=by, from_storage_percent=None)).passed is True
    assert judge(evidence(by=by, from_storage_percent=130.0)).passed is True


def test_a_storage_that_fails_with_memorys_help_fails() -> None:
    low = {"au": 60.0, "au_sustained": 60.0, "au_whole": 60.0}
    assert judge(evidence(by="sustained", from_storage_percent=50.0, **low)).passed is False


def test_what_lies_within_its_uncertainty_is_undecided_and_says_how_long_to_run() -> None:
    near = judge(evidence(by="sustained", au_sustained=90.5, uncertainty_percent=1.0))
    assert near.passed is None
    assert near.code == VerdictCode.UNDECIDED
    epochs = near.numbers["epochs"]
    assert isinstance(epochs, int)
    assert epochs >= 20, "half of U takes four times as long"
    assert judge(evidence(by="sustained", au_sustained=91.5, uncertainty_percent=1.0)).passed is True
    assert judge(evidence(by="sustained", au_sustained=88.5, uncertainty_percent=1.0)).passed is False


def test_an_epoch_out_of_the_prefetch_queue_gives_no_verdict() -> None:
    """Storage at a quarter of the demand looked like 100 % when an epoch had no more steps than batches read ahead."""
    assert judge(evidence(au=100.0, au_whole=23.0, kept_steps=1)).passed is None
    assert judge(evidence(au=100.0, au_whole=23.0, kept_steps=6)).passed is True
    assert judge(evidence(au=100.0, au_whole=97.0, kept_steps=1)).passed is True
    assert warm_up_bias(evidence(au=100.0, au_whole=23.0, kept_steps=20)) == pytest.approx(20 / 15)
    assert warm_up_bias(evidence(au=100.0, au_whole=97.0, kept_steps=20)) is None


def test_of_epochs_read_at_once_only_a_pass_is_sure() -> None:
    """The storage may give more to readers that have more to do: what is known is the least."""
    short = {"by": "sustained", "supply_known": False, "au": 100.0}
    least = judge(evidence(**short, au_sustained=40.0))
    assert least.passed is None
    assert (least.code, least.numbers["au_percent"]) == (VerdictCode.SUPPLY_NOT_KNOWN, 40.0)
    assert judge(evidence(**short, au_sustained=90.0)).passed is True
    assert judge(evidence(**short, au_sustained=40.0, uncertainty_percent=60.0)).passed is None
    assert judge(evidence(**(short | {"au": 89.0}), au_sustained=40.0)).passed is False
    assert judge(evidence(**(short | {"by": "au"}), au_sustained=40.0)).passed is True


@pytest.mark.parametrize("by", ["sustained", "au", "rules"])
@pytest.mark.parametrize("limit", ["host CPU", "emulator"])
def test_while_the_host_is_the_limit_nothing_is_said_of_the_storage(by: str, limit: str) -> None:
    low = {"by": by, "au": 60.0, "au_sustained": 60.0, "au_whole": 60.0}
    verdict = judge(evidence(**low), limit)
    assert verdict.passed is None
    assert (verdict.code, verdict.numbers["limited_by"]) == (VerdictCode.HOST_LIMITED, limit)
    assert judge(evidence(by=by), limit).passed is True, "a storage that passes passes"
    for other in ("storage", "loader", "nothing", ""):
        assert judge(evidence(**low), other).passed is False


@pytest.mark.parametrize("by", ["sustained", "au", "rules"])
@pytest.mark.parametrize(
    ("au", "margin", "passed"),
    [
        (89.9, 0.2, None),
        (89.5, 0.5, False),
        (89.5, 0.51, None),
        (90.0, 0.0, True),
        (90.0, 0.1, None),
        (90.5, 0.5, True),
        (90.5, 0.51, None),
    ],
)
def test_what_lies_within_u_of_the_threshold_is_open_on_both_sides(
    by: str, au: float, margin: float, passed: bool | None
) -> None:
    aus = {"au": au, "au_sustained": au, "au_whole": au}
    assert judge(evidence(by=by, **aus, uncertainty_percent=margin)).passed is passed


@pytest.mark.parametrize(
    ("changes", "outcome", "status"),
    [
        ({"au_sustained": 95.0}, "pass", 0),
        ({"au_sustained": 80.0}, "fail", 1),
        ({"au_sustained": 90.5, "uncertainty_percent": 1.0}, "undecided", 4),
        ({"au_sustained": 95.0, "from_storage_percent": 10.0}, "no verdict", 4),
        ({"au_sustained": 80.0, "ceiling_au": 85.0}, "no verdict", 4),
        ({"au_sustained": None}, "no verdict", 4),
        ({"complete": False}, "no verdict", 4),
    ],
)
def test_each_outcome_has_its_exit_status(changes: dict[str, Any], outcome: str, status: int) -> None:
    judged = judge(evidence(**({"by": "sustained", "threshold_percent": 90.0} | changes)))
    assert judged.outcome == outcome
    assert EXIT_STATUSES[judged.outcome] == status
    assert judged.passed == {"pass": True, "fail": False}.get(outcome)
