"""The catalogues of metrics as tables of docs/metrics.md."""

from __future__ import annotations

from dlemu.results.kinds import kinds

METRICS_BEGIN = "<!-- made by scripts/docs from the kinds' metrics.CATALOGUE -->"


def metric_tables() -> str:
    """Return a table for each kind of job that declares metrics."""
    parts = []
    for kind in kinds():
        if kind.metrics:
            cells = ((f"`{one.name}`", one.title, one.unit, one.better, one.meaning) for one in kind.part("metrics"))
            rows = [("key", "name", "unit", "better", "meaning"), ("---",) * 5, *cells]
            parts.append("\n".join([f"Of {kind.noun}:", "", *(f"| {' | '.join(row)} |" for row in rows), ""]))
    return "\n".join(parts)
