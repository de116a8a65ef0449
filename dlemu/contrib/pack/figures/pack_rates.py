"""Figure: rates, duration and CPU use against the setting that varies."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from dlemu.contrib.pack.result import PackAnswer, PackFigures
from dlemu.report.figure_base import Canvas, Figure, Row, colours, data, legend
from dlemu.report.units import short_names

ORDER = 10
_PANELS: dict[str, Callable[[PackFigures], float]] = {
    "MB/s read": lambda figures: figures.read_mb_per_second,
    "time, s": lambda figures: figures.seconds,
    "MB/s written": lambda figures: figures.write_mb_per_second,
    "CPU, % of all cores": lambda figures: figures.cpu_percent,
}


def draw(answer: PackAnswer, canvas: Canvas) -> Figure | None:
    values = {key: {point.settings[key] for point in answer.points} for key in answer.points[0].settings}
    varied = [key for key in values if len(values[key]) > 1]
    if not varied:
        return None
    axis = next((key for key in ("processes", "images") if key in varied), varied[0])
    short = {key: short_names(sorted(values[key])) for key in varied if key != axis}
    rows: list[Row] = [
        {
            "line": ", ".join(f"{key}={names[point.settings[key]]}" for key, names in short.items()) or "packing",
            "at": int(point.settings[axis]) if axis in ("processes", "images") else point.settings[axis],
            **{title: value(point.figures) for title, value in _PANELS.items()},
        }
        for point in answer.points
        if point.figures is not None
    ]
    panels = [_panel(rows, axis, title, canvas) for title in _PANELS]
    caption = (
        "Bytes of the images' files, and packed bytes (1e6), by the time until the last packed byte was on the device; "
        "CPU time of the processes."
    )
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2)
    return Figure(f"Rates, time and CPU against {axis}", caption, chart) if rows else None


def _panel(rows: list[Row], axis: str, title: str, canvas: Canvas) -> alt.LayerChart:
    """Draw a line with points for each value of the other settings, such as each drive."""
    lines = sorted({row["line"] for row in rows})
    shown = legend(canvas, 1 if canvas.narrow else 2) if len(lines) > 1 else None
    base = alt.Chart(data([{**row, "value": row[title]} for row in rows])).encode(
        x=alt.X("at:O", title=axis, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)),
        color=alt.Color("line:N", scale=colours(lines), legend=shown),
    )
    drawn = alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1))
    return drawn.properties(width=canvas.width if canvas.narrow else (canvas.width - 70) // 2, height=210)
