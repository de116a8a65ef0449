"""Where AU was lost: the parts of all accelerators' time that were not computation."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import INK, PADDING, Canvas, Figure, Row, data, part_colours, part_name
from dlemu.report.units import flat

ORDER = 20


def draw(run: Run, canvas: Canvas) -> Figure | None:
    loss = run.summary.loss_percent
    if loss is None:
        return None
    parts = dict(flat(loss))
    rows: list[Row] = [
        {"part": part_name(part), "percent": round(value, 4), "text": f"{value:.2f} %"} for part, value in parts.items()
    ]
    names = [row["part"] for row in rows]
    y = alt.Y("part:N", sort=names, title=None, axis=alt.Axis(labelLimit=190, ticks=False, domain=False, offset=2))
    x = alt.X("percent:Q", title="% of total accelerator time", scale=alt.Scale(domainMin=0, padding=24))
    base = alt.Chart(data(rows)).encode(x=x, y=y)
    bars = base.mark_bar(height=16).encode(color=alt.Color("part:N", scale=part_colours([*parts]), legend=None))
    labels = base.mark_text(align="left", dx=4, color=INK, fontSize=11).encode(text=alt.Text("text:N"))
    caption = (
        f"{loss.total:.2f} % in total: the AU by MLPerf's rules falls short of 100 % by this. Each step takes as "
        "long as its slowest accelerator, and the time is attributed to what that one waited for."
    )
    width = canvas.width - (130 if canvas.narrow else 160)
    return Figure(
        "Where AU was lost",
        caption,
        alt.layer(bars, labels).properties(width=width, height=26 * len(rows), padding=PADDING),
    )
