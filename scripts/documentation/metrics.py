"""The catalogues of metrics as lists of docs/metrics.md."""

from __future__ import annotations

from dlemu.metrics.catalogue import Metric
from dlemu.results.kinds import kinds

METRICS_BEGIN = "<!-- made by scripts/docs from the kinds' metrics.CATALOGUE -->"


def metric_lists() -> str:
    """Return a list for each kind of job that declares metrics."""
    parts = []
    for kind in kinds():
        if kind.is_job:
            parts.append("\n".join([f"Of {kind.noun}:", "", *map(_line, kind.load_job().catalogue.compared), ""]))
    return "\n".join(parts)


def _line(metric: Metric) -> str:
    better = "" if metric.better == "neither" else f", {metric.better}"
    return f"- `{metric.name}` ({metric.title}, {metric.unit}{better}): {metric.meaning}"
