"""Each sentence of a prediction names its numbers."""

from __future__ import annotations

from typing import Any

from dlemu.jobs.training.prediction.prediction import _ISSUES, _SEEN, _VERDICTS, Issue, PredictedVerdict, Seen
from dlemu.metrics.findings import Finding, Number
from dlemu.results.wording import sentence
from tests.jobs.wordings import unnamed

AU = {"accelerators": 8, "au_percent": 91}
NUMBERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys((PredictedVerdict.PASSES, PredictedVerdict.FAILS, PredictedVerdict.TOO_CLOSE), AU),
    PredictedVerdict.NONE_PASSES: {"au_percent": 91},
    **dict.fromkeys(
        (PredictedVerdict.MOST, PredictedVerdict.MOST_TRIED, PredictedVerdict.MOST_OR_MORE), AU | {"low": 8, "high": 8}
    ),
    PredictedVerdict.MOST_TRIED: AU | {"low": 8, "high": 8, "ended_by": "files"},
    PredictedVerdict.MOST_OR_FEW_MORE: AU | {"low": 8, "high": 11},
    Seen.SUSTAINED: AU,
    Seen.GAINS: {"faster": 2, "faster_points": 20, "more_readers": 4, "readers_points": 11, "cores_points": 7},
    Issue.READERS_NEVER_TRIED: {"readers": 5, "tried": 7},
    Issue.OTHER_SAMPLES: {"calibrated_bytes": 50, "sample_bytes": 60},
    Issue.LINE_IGNORED: {"size_bytes": 400, "depth": 3, "mb_per_second": 70, "model_mb_per_second": 80},
    Issue.BUSY_CORES: {"busy_cores": 3, "cores": 4},
    Issue.FILES_ASSUMED: {"configured": 9, "accelerators": 8, "files": 120},
    Issue.STEPS_LEFT_OUT: {"simulated_steps": 50, "planned_steps": 100},
    Issue.HOST_SLOWER_THAN_STEP: {"delay_ms": 9, "step_ms": 7},
    Issue.NOTE: {"text": "noted"},
}


def test_every_sentence_names_its_numbers() -> None:
    words = {**_VERDICTS, **_SEEN, **_ISSUES}

    def line(code: str, numbers: dict[str, Number]) -> str:
        return sentence(Finding(code, numbers=numbers), words)

    assert unnamed([*PredictedVerdict, *Seen, *Issue], NUMBERS, line) == []
