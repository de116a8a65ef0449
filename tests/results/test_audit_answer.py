"""audit.json: what is known of a run by several names, and how far numbers lie apart."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.mlperf.audit.audit_answer import PlacedRun, RunColumns


def columns(**changes: Any) -> RunColumns:
    figures: dict[str, Any] = {
        "path": "run",
        "basis": "steps",
        "printed_by": "dlio",
        "errors": 0,
        "au_printed_percent": 80.0,
        "samples_per_second_printed": 200.0,
        "samples_per_second_dlio_v1": 150.0,
        "samples_per_second_dlio": 210.0,
        "samples_per_second_dlio_v3": 220.0,
        "samples_per_second_dlio_fork": 230.0,
        "au_dlio_v1_percent": 60.0,
        "au_dlio_percent": 78.5,
        "au_dlio_v3_percent": 81.0,
        "au_dlio_fork_percent": 82.0,
    }
    return RunColumns(**(figures | changes))


@pytest.mark.parametrize(
    ("printed_by", "au", "rate"),
    [("dlio_v1", 60, 150), ("dlio", 78.5, 210), ("dlio_v3", 81, 220), ("dlio_fork", 82, 230), (None, None, None)],
)
def test_what_is_recomputed_is_by_the_formula_that_was_printed(
    printed_by: str | None, au: float | None, rate: float | None
) -> None:
    run = columns(printed_by=printed_by)
    assert (run.au_recomputed_percent, run.samples_per_second_recomputed) == (au, rate)
    assert run.au_difference_points == (None if au is None else pytest.approx(au - 80))
    assert run.rate_difference_percent == (None if rate is None else pytest.approx(100 * (rate - 200) / 200))


def test_without_one_of_the_two_nothing_lies_apart() -> None:
    assert columns(au_printed_percent=None).au_difference_points is None
    assert columns(au_dlio_percent=None).au_difference_points is None
    assert columns(samples_per_second_printed=0.0).rate_difference_percent is None
    assert columns(samples_per_second_dlio=None).rate_difference_percent is None
    assert columns(samples_per_second_dlio=0.0).rate_difference_percent == -100


def test_a_run_is_called_by_its_place_and_its_kind() -> None:
    def placed(**changes: Any) -> PlacedRun:
        figures: dict[str, Any] = {"path": "x", "basis": "steps", "printed_by": None, "errors": 0, "findings": ()}
        return PlacedRun(**(figures | {"system": "results/", "run": "./run_1"} | changes))

    assert placed().name == "results/run_1"
    assert placed(workload="unet3d", accelerator="h100").kind == "unet3d h100"
    assert placed(workload="unet3d").kind == "unet3d"
    assert placed().kind == "workload unknown"
