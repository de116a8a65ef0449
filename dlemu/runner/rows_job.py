"""The names with which to define a kind of job whose ranks log rows, and whose summary is computed from the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlemu.metrics.catalogue import RUN, Catalogue, declared
from dlemu.metrics.findings import Confidence as Confidence  # re-exported, like the other `X as X`, for such kinds
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

RowsSummary = JobSummary  # each kind declares its metrics in a subclass


def rows_parts(
    job: JobKind,
    *,
    judged: str = "",
    note: str = "",
    conditions: Callable[..., Conditions] | None = None,
    limited_by: Callable[[Any], str | None] = lambda summary: None,
    screen: Callable[[Any, str], Any] | None = None,
) -> JobParts:
    """Return the `JobParts` of a kind of job, whose figures (and by default pages, conditions) are from the summary.

    `judged` and `note` go into its `Catalogue`, `screen` and `conditions` into its `JobParts`. `limited_by` returns the
    limit that a summary names, None without one.
    """
    catalogue = Catalogue(metrics=declared(job.summary_type), judged=judged, note=note)

    def figures(run: RowsRun) -> JobFigures:
        summary = run.summary
        limit = limited_by(summary)
        values = {metric.name: getattr(summary, metric.name) for metric in catalogue}
        return JobFigures(
            **summary.head,
            limited_by={} if limit is None else {RUN: limit},
            metrics={name: Value(value) for name, value in values.items() if value is not None},
        )

    return JobParts(
        answer_type=job.summary_type,
        screen=screen,
        job=job,
        catalogue=catalogue,
        figures=figures,
        conditions=conditions or (lambda summary, facts: Conditions(title=job.name)),
    )
