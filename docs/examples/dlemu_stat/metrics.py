"""The metrics of stat calls, and what sweeps and comparisons keep of a run."""

from __future__ import annotations

from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, Value
from dlemu.runner.rows_job import RowsRun
from dlemu_stat.job import StatSummary

CATALOGUE = Catalogue(
    metrics=(
        Metric(
            name="mean_us",
            title="one call",
            unit="us",
            better="lower",
            meaning="mean time of a stat call",
            head="call\nus",
            phase="run",
        ),
        Metric(
            name="calls_per_second",
            title="calls",
            unit="/s",
            better="higher",
            meaning="of all ranks together, while they were in a call",
            head="calls\n/s",
            is_tile=True,
        ),
    ),
)


def figures(run: RowsRun) -> JobFigures:
    """Return what sweeps, comparisons and pages of several keep of a run."""
    summary: StatSummary = run.summary
    known = {"mean_us": summary.mean_us, "calls_per_second": summary.calls_per_second}
    return JobFigures(
        kind=summary.kind,
        workload=summary.workload,
        ranks=summary.ranks,
        verdict=summary.verdict,
        metrics={name: Value(value) for name, value in known.items() if value is not None},
    )


def conditions(summary: StatSummary) -> Conditions:
    """Return what a run was measured under."""
    return Conditions(title="stat calls", started_at=summary.started_at, hosts=summary.environment.hosts)
