"""The types of predict_checkpoints.json, which `dlemu predict --json` prints for a workload of checkpoints.

docs/prediction.md describes it. Within a schema version fields may be added, but none changes or disappears.
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
    """Codes of the warnings about a prediction."""

    NO_WRITES = "no_writes"
    NO_READS = "no_reads"
    OTHER_RANKS = "other_ranks"
    NOT_STEADY = "not_steady"
    NOT_READ = "not_read"


@dataclass(frozen=True, kw_only=True)
class CheckpointQuestion:
    """What was to be predicted."""

    workload: str
    overrides: tuple[str, ...] = ()
    hosts: int = 1


@dataclass(frozen=True, kw_only=True)
class PredictedPhase:
    """The predicted time and throughput of one checkpoint, written or read."""

    seconds: float
    """Time until the slowest rank is done."""
    seconds_interval: tuple[float, float]
    """Prediction interval of `seconds`, at 90 % or more if the storage performs as described."""
    gib_per_second: float
    """Bytes of all ranks / `seconds`, GiB = 2^30 bytes: the metric of MLPerf Storage's rules."""


@dataclass(frozen=True, kw_only=True)
class CheckpointPrediction:
    """The prediction for one workload and storage."""

    schema_version: int = ANSWER_VERSION
    question: CheckpointQuestion
    source: str
    """Where the storage's speed is taken from."""
    ranks: int
    """Ranks that the run would emulate; `ranks_of_job` are all of the job."""
    ranks_of_job: int
    files: int
    """Files of one checkpoint, of the emulated ranks."""
    bytes: int
    """Bytes of one checkpoint, of the emulated ranks."""
    verdict: str = ""
    """The prediction as a sentence."""
    write: PredictedPhase | None
    """Null if the storage's write speed is unknown."""
    read: PredictedPhase | None
    """Null if the storage's read speed is unknown."""
    training: TrainingCost | None
    """Null if the storage's write speed is unknown."""
    issues: tuple[str, ...] = ()
    """`findings` as sentences."""
    findings: tuple[Finding, ...] = ()
    """Warnings that a reader must know."""

    @property
    def outcome(self) -> Outcome:
        """Always `pass`, because checkpoints have no threshold."""
        return "pass"
