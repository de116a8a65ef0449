"""What a kind of job needs whose ranks only log rows, from which its summary follows: its parts are made of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlemu.metrics.catalogue import RUN, Catalogue, declared
from dlemu.metrics.findings import Confidence as Confidence  # such kinds name these
from dlemu.metrics.findings import LimitedBy as LimitedBy
from dlemu.metrics.verdict import Outcome as Outcome
from dlemu.ranks.row_log import RowLog as RowLog
from dlemu.ranks.row_log import Rows as Rows
from dlemu.results.figures import Conditions, JobFigures, Value
from dlemu.results.kinds import JobParts
from dlemu.results.measured import common_fields as common_fields
from dlemu.results.parts import JobSummary
from dlemu.runner.job_kind import JobKind as JobKind
from dlemu.runner.job_kind import RowsRun as RowsRun

RowsSummary = JobSummary  # each kind adds its metrics in a subclass, and declares them there


def rows_parts(
    job: JobKind,
    *,
    judged: str = "",
    note: str = "",
    conditions: Callable[..., Conditions] | None = None,
    limited_by: Callable[[Any], str | None] = lambda summary: None,
    screen: Callable[[Any, str], Any] | None = None,
) -> JobParts:
    """Return the parts of a kind of job; figures, conditions and pages come from its summary unless they are given.

    `judged` and `note` are those of its catalogue; `limited_by` takes a summary; for `screen` see `JobParts`.
    """

    def figures(run: RowsRun) -> JobFigures:
        summary = run.summary
        limit = limited_by(summary)
        values = {metric.name: getattr(summary, metric.name) for metric in catalogue}
        return JobFigures(
            **summary.head,
            limited_by={} if limit is None else {RUN: limit},
            metrics={name: Value(value) for name, value in values.items() if value is not None},
        )

    catalogue = Catalogue(metrics=declared(job.summary_type), judged=judged, note=note)
    return JobParts(
        answer_type=job.summary_type,
        screen=screen,
        job=job,
        catalogue=catalogue,
        figures=figures,
        conditions=conditions or (lambda summary, facts: Conditions(title=job.name)),
    )
