"""The answer of `dlemu predict` for checkpoints: predict_checkpoints.json, also printed by `--json`, and its sentences.

docs/prediction.md describes it. Within a schema version fields may be added, but none changes or disappears.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.jobs.checkpoint.summary import TrainingCost
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.verdict import Outcome
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.results.drive import OUTSIDE
from dlemu.results.wording import Wording

PREDICTION = "predict_checkpoints.json"


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


@dataclass(frozen=True, kw_only=True)
class CheckpointPrediction:
    """The prediction for one workload and storage."""

    schema_version: int = ANSWER_VERSION
    question: CheckpointQuestion
    source: str
    """Where the storage's speed is taken from."""
    ranks: int
    """Ranks that the run would emulate."""
    bytes: int
    """Bytes of one checkpoint, of the emulated ranks."""
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


WATCHDOG_SECONDS = 600.0
"""NCCL's watchdog ends a job whose ranks wait longer for one of them (PyTorch's default for a process group)."""
WATCHDOG = "longer_than_watchdog"
"""Code of a finding that only predictions have."""
FINDINGS: Wording[str] = {
    WATCHDOG: "training waits {seconds:,.0f} s for a checkpoint, and NCCL's watchdog ends a job after "
    "{watchdog_seconds:g}: raise its timeout (init_process_group), or save asynchronously",
    OUTSIDE: "measured with {measured_ranks:count rank}, predicted for {ranks}: the storage is assumed to "
    "deliver the same to all of them together",
    Code.STORAGE_NOT_STEADY: "the storage had not reached a steady speed of writing in that run: a longer one may be "
    "slower",
    Code.PAGE_CACHE: "only {from_storage_percent:.0f} % of what that run read came from the storage, so its speed of "
    "reading says nothing of it",
}
