"""Base classes of results: each declares keys of the JSON, and the type of a result inherits some and adds its own.

    RunFields(WorkloadFields, OutcomeField, VerdictField)   shared by a run's summary and its figures
    JobSummary(EnvironmentFields, RunFields, Answer)        the summary of a run of any kind of job

A dataclass collects the fields of its bases from right to left: the JSON of C(A, B) has B's keys, A's, and then C's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from datagen.errors import DlemuError
from datagen.quantiles import Percentiles
from datagen.storage._request_counts import INDEX, RequestCounts, waits_ms
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.metrics.findings import Finding
from dlemu.metrics.verdict import EXIT_STATUSES, PASSED, Outcome
from dlemu.results.answer_files import Answer


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The hosts and the storage of a run."""

    hosts: tuple[HostFacts, ...] = ()
    """In node order."""
    storage: StorageFacts | None = None
    """The file system of the dataset, or of what was probed."""


@dataclass(frozen=True, kw_only=True)
class WorkloadFields:
    """What a job emulates."""

    workload: str
    accelerator: str | None = None
    """None, or empty, when none was chosen."""
    sample_divisor: float | None = None
    """How many times larger samples are without the workload's scale; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class VerdictField:
    """The result in words."""

    verdict: str = ""
    """The result as one line of text; empty in a study that goes on."""


@dataclass(frozen=True, kw_only=True)
class OutcomeField:
    """Whether a measured or predicted job passes."""

    outcome: Outcome | None = None
    """As in the exit status; None where nothing is judged, and while the study goes on."""

    @property
    def passed(self) -> bool | None:
        """None for jobs that neither pass nor fail, and for runs without a verdict."""
        return PASSED.get(self.outcome)


@dataclass(frozen=True, kw_only=True)
class RunFields(WorkloadFields, OutcomeField, VerdictField):
    """The fields that the summary of a run and its figures have in common."""

    kind: str
    """Kind of job: `training`, `checkpoint`, ...; its catalogue has the metrics' titles and units."""
    ranks: int

    @property
    def head(self) -> dict[str, Any]:
        """These fields by name, to build the figures of a run from its summary."""
        return {member.name: getattr(self, member.name) for member in fields(RunFields)}


@dataclass(frozen=True, kw_only=True)
class TargetFields(WorkloadFields):
    """What a job emulates, and the threshold that it must reach to pass."""

    threshold_percent: float | None = None
    """Value of the judged metric (AU in training) at which it passes."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentFields:
    """When and where a result was measured."""

    started_at: str = ""
    """ISO 8601 with zone."""
    environment: Environment = field(default_factory=Environment)


@dataclass(frozen=True, kw_only=True)
class JobSummary(EnvironmentFields, RunFields, Answer):
    """The summary of a run of any kind of job; each kind adds its metrics in a subclass."""

    complete: bool = field()  # every run must state both: no default, unlike in `Answer` and `VerdictField`
    verdict: str = field()
    failure: str | None
    """Why the run is incomplete; None for a complete one."""

    @property
    def headline(self) -> str:
        """The verdict to display; training overrides it for a run that passed only from the page cache."""
        return self.verdict

    @property
    def exit_status(self) -> int:
        """Exit status of the command that made the result (docs/results.md)."""
        status = EXIT_STATUSES[self.outcome] if self.outcome else 0
        return status if self.complete else DlemuError.exit_status


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
    """The fields that the summaries of training and checkpoints have in common."""

    scale: str | None
    """Name of the workload's scale; None when none was chosen."""
    requests: Requests | None = None
    """Requests to an object store; None where none were made."""
    findings: tuple[Finding, ...] = ()
    """What was found, as codes with their numbers; what explains training's limit is in `limited_by`."""


def summarise_requests(counters: Sequence[int]) -> Requests:
    """Return the summary of a journal's request counters; `counters` is in the order of `RequestCounts.values`."""
    counts = RequestCounts(np.array(counters, np.int64))
    return Requests(
        **{member.name: counts[member.name] for member in fields(Requests) if member.name in INDEX},
        first_byte_ms=waits_ms(counts.first_byte),
    )
