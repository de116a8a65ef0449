"""Parts of summaries that several kinds of jobs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from datagen.errors import DlemuError
from datagen.quantiles import Percentiles
from datagen.storage._request_counts import INDEX, RequestCounts, waits_ms
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.metrics.findings import Finding
from dlemu.metrics.verdict import EXIT_STATUSES, Outcome
from dlemu.results.answer_files import Answer


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The hosts and the storage of a run."""

    hosts: tuple[HostFacts, ...] = ()
    """In node order."""
    storage: StorageFacts | None = None
    """The file system of the dataset."""


@dataclass(frozen=True, kw_only=True)
class JobSummary(Answer):
    """What every job's summary contains; a kind adds its metrics in a subclass."""

    kind: str = ""
    """Kind of job: `training`, `checkpoint`, ..."""
    complete: bool
    """Whether everything planned was measured."""
    failure: str | None
    """Why the run is incomplete; None for a complete one."""
    verdict: str
    """The result as one line of text."""
    workload: str
    ranks: int
    started_at: str = ""
    """ISO 8601 with zone."""
    environment: Environment = field(default_factory=Environment)
    issues: tuple[str, ...] = ()
    """What a reader of the numbers must know, as sentences: notes made before the run, and findings."""

    @property
    def headline(self) -> str:
        """The verdict as people are shown it."""
        return self.verdict

    @property
    def exit_status(self) -> int:
        """Exit status of the command that made it (docs/results.md)."""
        outcome: Outcome | None = getattr(self, "outcome", None)  # of the kinds whose runs are judged
        return (EXIT_STATUSES[outcome] if outcome else 0) if self.complete else DlemuError.exit_status


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests to an object store in training, evaluation and checkpoints, including those sent again."""

    get: int
    put: int
    received_bytes: int
    """Bytes in the bodies of responses."""
    failed: int
    """Responses with an error status, and broken connections."""
    retried: int
    """Requests sent again after a failure."""
    slow_down: int
    """Responses with status 503 or 429."""
    first_byte_ms: Percentiles | None = None
    """From a GET to the first byte of its response, ms, within 2.2 %."""


@dataclass(frozen=True, kw_only=True)
class StorageSummary(JobSummary):
    """What the summaries of training and of checkpoints have alike."""

    scale: str | None
    """Name of the workload's scale; None when none was chosen."""
    requests: Requests | None = None
    """Requests to an object store; None where none were made."""
    findings: tuple[Finding, ...] = ()
    """What was found, as codes with their numbers; of training, what does not explain its limit."""


def requests_of(values: Sequence[int]) -> Requests:
    """Return the summary of a journal's counters (`RequestCounts.values`)."""
    counts = RequestCounts(np.array(values, np.int64))
    return Requests(
        **{part.name: counts[part.name] for part in fields(Requests) if part.name in INDEX},
        first_byte_ms=waits_ms(counts.first_byte),
    )
