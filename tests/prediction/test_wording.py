"""Each code of a prediction has its sentence."""

from __future__ import annotations

import pytest

from dlemu.jobs.training.prediction.prediction import Issue, PredictedVerdict, Seen
from dlemu.jobs.training.prediction.wording import _ISSUES, _SEEN, _VERDICTS
from dlemu.metrics.findings import Finding, Number
from dlemu.results.wording import sentence


def test_no_code_is_without_words() -> None:
    assert {*_ISSUES, *_SEEN, *_VERDICTS} == {str(code) for codes in (Issue, Seen, PredictedVerdict) for code in codes}


@pytest.mark.parametrize(
    ("code", "numbers", "said"),
    [
        (PredictedVerdict.TOO_CLOSE, {}, "8 too close to call (AU 90.5 %)"),
        (PredictedVerdict.MOST, {"low": 1, "high": 1}, "1 passes (AU 90.5 %)"),
        (PredictedVerdict.MOST_OR_FEW_MORE, {"low": 8, "high": 9}, "8 pass (AU 90.5 %), 9 is too close to call"),
        (
            PredictedVerdict.MOST_OR_FEW_MORE,
            {"low": 8, "high": 11},
            "8 pass (AU 90.5 %), 9 to 11 are too close to call",
        ),
        (
            PredictedVerdict.MOST_TRIED,
            {"low": 8, "high": 8, "ended_by": "files"},
            "8 pass (AU 90.5 %), possibly more: the dataset has too few files for more",
        ),
        (
            PredictedVerdict.MOST_TRIED,
            {"low": 8, "high": 8, "ended_by": "cores"},
            "8 pass (AU 90.5 %), possibly more: this host has no cores for more trainers (see --hosts, --host-cores)",
        ),
        (
            PredictedVerdict.MOST_OR_MORE,
            {"low": 0, "high": 9},
            "none is certain to pass (AU of 8: 90.5 %), possibly more: the storage never reached its limit",
        ),
    ],
)
def test_the_verdict(code: PredictedVerdict, numbers: dict[str, Number], said: str) -> None:
    assert sentence(Finding(code, numbers={"accelerators": 8, "au_percent": 90.46, **numbers}), _VERDICTS) == said


def test_what_makes_it_worse_reads_like_no_advice() -> None:
    gains: dict[str, Number] = {"faster": 2.0, "faster_points": 20.04, "more_readers": 4, "cores_points": 0.04}
    said = sentence(Finding(Seen.GAINS, numbers={**gains, "readers_points": -11.4}), _SEEN)
    assert said == (
        "AU over whole epochs would change by +20.0 points with storage 2 times as fast, by 0 points with 4 times the "
        "readers, by 0 points with a core per worker"
    )
