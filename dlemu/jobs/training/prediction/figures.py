"""The figure of a prediction: AU by number of accelerators."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.report.figure_base import Figure, Level, Row, lines, percent_domain

_VERDICTS = {True: "pass", False: "fail", None: "open"}
_MAX_GAP = 3
"""A count this many times the count before was tried to find the limit; it is left out: it would squeeze the axis."""


def predicted_au(answer: Prediction) -> Figure | None:
    """Predicted AU by number of accelerators with its interval, and the pass line."""
    rows: list[Row] = []
    for count in answer.counts:
        if rows and count.accelerators > _MAX_GAP * rows[-1]["at"]:
            break
        low, high = count.au_sustained_interval_percent
        row = {"line": "predicted", "at": count.accelerators, "verdict": _VERDICTS[count.passed]}
        rows.append(row | {"low": low, "high": high, "value": count.au_sustained_percent})
    threshold = answer.question.threshold_percent
    axis = alt.Axis(values=[row["at"] for row in rows], grid=False, format=",~f", labelOverlap=True)
    x = alt.X("at:Q", title="accelerators", axis=axis, scale=alt.Scale(zero=False, padding=14))
    domain = percent_domain([row["low"] for row in rows] + [threshold])
    passes = max((row["at"] for row in rows if row["verdict"] == "pass"), default=0)
    title = f"Up to {passes:,} accelerators pass" if passes else "No number of accelerators passes for certain"
    caption = "Vertical lines: the prediction's interval. Hollow: not sure to pass."
    return Figure(
        title, caption, lines(rows, x, "AU, %", domain=domain, levels=[Level(threshold, "pass")], points=True)
    )


FIGURES = (predicted_au,)
