"""The storage's throughput by number of readers, on which the prediction is based."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.report.figure_base import BLUE, Canvas, Figure, data

ORDER = 20


def draw(answer: Prediction, canvas: Canvas) -> Figure | None:
    curve = answer.calibration.curve
    if len(curve) < 2:
        return None
    rows = [{"at": point.readers, "value": round(point.mb_per_second / 1e3, 5)} for point in curve]
    x = alt.X(
        "at:Q",
        title="readers",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=[point.readers for point in curve], grid=False),
    )
    base = alt.Chart(data(rows)).encode(x=x, y=alt.Y("value:Q", title="GB/s", scale=alt.Scale(zero=True)))
    chart = alt.layer(
        base.mark_line(color=BLUE, strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1, color=BLUE)
    )
    caption = f"From {answer.calibration.source}."
    return Figure(
        "What the storage delivers by number of readers", caption, chart.properties(width=canvas.width, height=220)
    )
