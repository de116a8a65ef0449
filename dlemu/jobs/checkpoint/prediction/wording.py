"""The sentences about a checkpoint prediction."""

from __future__ import annotations

from dataclasses import replace

from dlemu.jobs.checkpoint.prediction.prediction import CheckpointPrediction, Issue, PredictedPhase
from dlemu.report.units import number, size
from dlemu.results.wording import Wording, count, sentences


def in_words(answer: CheckpointPrediction) -> CheckpointPrediction:
    """Return the prediction with its verdict and warnings as sentences."""
    parts = [*_phase("write", answer.write), *_phase("read", answer.read)]
    cost = answer.training
    if cost is not None:
        parts.append(f"training loses {cost.percent:.2g} % of its time to one every {cost.interval_seconds:,g} s")
    ranks = count(answer.ranks, "rank")
    verdict = f"predicted: a checkpoint of {size(answer.bytes)} by {ranks} takes {'; '.join(parts)}"
    return replace(answer, verdict=verdict, issues=sentences(answer.findings, _ISSUES))


def _phase(verb: str, phase: PredictedPhase | None) -> list[str]:
    if phase is None:
        return []
    return [f"{number(phase.seconds)} s to {verb} ({number(phase.gib_per_second)} GiB/s)"]


_ISSUES: Wording = {
    Issue.NO_WRITES: "nothing is known of the storage's writes: give a data sheet with `writes`, a probe with --rw "
    "write, or a run that wrote checkpoints",
    Issue.NO_READS: "nothing is known of the storage's reads, so recovery is not predicted",
    Issue.OTHER_RANKS: "measured with {measured_ranks:count rank}, predicted for {ranks}: the storage is assumed to "
    "deliver the same to all of them together",
    Issue.NOT_STEADY: "the storage had not reached a steady speed of writing in that run: a longer one may be slower",
    Issue.NOT_READ: "memory served {cache_percent:.0f} % of what that run read, so its speed of reading says nothing "
    "of the storage",
}
