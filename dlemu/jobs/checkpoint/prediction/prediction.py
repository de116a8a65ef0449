"""What was predicted of checkpoints: predict_checkpoints.json, and what `dlemu predict --json` prints of them.

docs/prediction.md describes it. Fields may be added within a schema version; none changes its meaning or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dlemu.jobs.checkpoint.summary import TrainingCost
from dlemu.metrics.findings import Finding
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import ANSWER_VERSION

PREDICTION = "predict_checkpoints.json"


class Issue(StrEnum):
    """Codes of what a reader must know."""

    NO_WRITES = "no_writes"
    NO_READS = "no_reads"
    OTHER_RANKS = "other_ranks"
    NOT_STEADY = "not_steady"
    NOT_READ = "not_read"


@dataclass(frozen=True, kw_only=True)
class CheckpointQuestion:
    """The question."""

    workload: str
    overrides: tuple[str, ...] = ()
    hosts: int = 1


@dataclass(frozen=True, kw_only=True)
class PredictedPhase:
    """One checkpoint, written or read."""

    seconds: float
    """Until the slowest rank is done."""
    seconds_interval: tuple[float, float]
    """The truth is expected in it in 9 of 10 predictions or more, if the storage does as it is described."""
    gib_per_second: float
    """Bytes of all ranks / `seconds`, GiB = 2^30 bytes: what MLPerf Storage's rules ask for."""


@dataclass(frozen=True, kw_only=True)
class CheckpointPrediction:
    """The answer."""

    schema_version: int = ANSWER_VERSION
    question: CheckpointQuestion
    source: str
    """What the storage's speed was taken from."""
    ranks: int
    """That take part; `ranks_of_job` are all of the job."""
    ranks_of_job: int
    files: int
    """Of one checkpoint, by the ranks that take part."""
    bytes: int
    """Of one checkpoint."""
    verdict: str = ""
    """The answer as a sentence."""
    write: PredictedPhase | None
    """None where nothing is known of the storage's writes."""
    read: PredictedPhase | None
    """None where nothing is known of its reads."""
    training: TrainingCost | None
    """None where nothing is known of its writes."""
    issues: tuple[str, ...] = ()
    """`findings` as sentences."""
    findings: tuple[Finding, ...] = ()
    """What a reader must know."""

    @property
    def outcome(self) -> Outcome:
        """Nothing can fail: checkpoints have no threshold."""
        return "pass"
