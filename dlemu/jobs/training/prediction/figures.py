"""The figure of a prediction: AU by number of accelerators."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.report.figure_base import BLUE, GREY, Figure, Level, Row, lines, percent_domain

_WORDS = {True: "pass", False: "fail", None: "open"}
_FAR = 3
"""Times as many accelerators as the count before: such were tried to find the limit, and would squeeze the others."""


def predicted_au(answer: Prediction) -> Figure | None:
    """Predicted AU by number of accelerators with its interval, the pass line, and the null model."""
    rows: list[Row] = []
    nulls: list[Row] = []
    for count in answer.counts:
        if rows and count.accelerators > _FAR * rows[-1]["at"]:
            break
        low, high = count.au_sustained_interval_percent
        known = {"line": "predicted", "at": count.accelerators, "verdict": _WORDS[count.passed]}
        rows.append(known | {"low": low, "high": high, "value": count.verdict_au("sustained")})
        nulls.append(known | {"line": "speed / demand", "value": count.null_au_percent, "verdict": "pass"})
    if all(abs(row["value"] - null["value"]) < 1 for row, null in zip(rows, nulls, strict=True)):
        nulls = []  # it would hide the prediction
    threshold = answer.question.threshold_percent
    places = [count["at"] for count in rows]
    axis = alt.Axis(values=places, grid=False, format=",~f", labelOverlap=True)
    x = alt.X("at:Q", title="accelerators", axis=axis, scale=alt.Scale(zero=False, padding=14))
    domain = percent_domain([row["low"] for row in rows] + [threshold])
    passes = [row["at"] for row in rows if row["verdict"] == "pass"]
    title = f"No number of accelerators reaches {threshold:g} % for certain"
    if passes:
        title = f"AU stays above {threshold:g} % up to {max(passes):,} accelerators"
    caption = "Vertical lines: the prediction's 95 % interval. Hollow: not sure to pass."
    drawn = lines(
        [*rows, *nulls], x, "AU, %", domain=domain, chosen=(BLUE, GREY), levels=[Level(threshold, "pass")], points=True
    )
    return Figure(title, caption, drawn)


FIGURES = (predicted_au,)
