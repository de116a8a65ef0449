"""The figure of a prediction: AU by number of accelerators."""

from __future__ import annotations

from typing import Any

import altair as alt

from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.report.figure_base import BLUE, GREEN, GREY, WIDTH, Figure, colours, data, legend, percent_domain, rule


def predicted_au(answer: Prediction) -> Figure | None:
    """Predicted AU by number of accelerators with its interval, the pass line, and the null model."""
    rows: list[dict[str, Any]] = []
    for count in answer.counts:
        low, high = count.au_sustained_interval_percent
        known = {"at": count.accelerators, "low": round(low, 3), "high": round(high, 3)}
        rows.append(known | {"line": "predicted", "value": round(count.verdict_au("sustained"), 3)})
        null = round(count.null_au_percent, 3)
        rows.append({"at": count.accelerators, "low": null, "high": null, "line": "null model", "value": null})
    threshold = answer.question.threshold_percent
    domain = percent_domain([float(row["low"]) for row in rows] + [threshold])
    scale = alt.Scale(domain=domain, nice=False, clamp=True)
    y, level = (alt.Y(field, title="AU, %", scale=scale) for field in ("value:Q", "level:Q"))
    places = sorted({count.accelerators for count in answer.counts})
    x = alt.X("at:Q", title="accelerators", axis=alt.Axis(values=places, grid=False, format="~g", labelOverlap=True))
    colour = alt.Color("line:N", scale=colours(["predicted", "null model"], [BLUE, GREY]), legend=legend())
    base = alt.Chart(data(rows)).encode(x=x, color=colour)
    bars = base.mark_rule(strokeWidth=1.4).encode(y=alt.Y("low:Q", title="AU, %", scale=scale), y2=alt.Y2("high:Q"))
    marks = [base.mark_line(strokeWidth=1.6).encode(y=y), base.mark_point(filled=True, size=55, opacity=1).encode(y=y)]
    chart = alt.layer(rule(threshold, f"pass {threshold:g} %", GREEN, level, left=True), bars, *marks)
    caption = "How many pass? Bars are the prediction's interval. The null model is only the storage's speed / demand."
    return Figure("Predicted AU against accelerators", caption, chart.properties(width=WIDTH, height=260))


FIGURES = (predicted_au,)
