"""The accelerators' time by rank and by epoch: computing, waiting (for what), and synchronising with other ranks."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.jobs.training.result import Run
from dlemu.metrics.loss import PARTS as WAITS
from dlemu.metrics.loss import wait_parts
from dlemu.metrics.over_time import Floats
from dlemu.metrics.rows import StepTable, chunks
from dlemu.report.figure_base import Canvas, Figure, Row, data, legend, part_colours, part_name, parts

ORDER = 30
_MAX_BARS, _MAX_NARROW_BARS = 32, 16  # neighbours share a bar where there would be more, to keep them visible
_SHOWN = ("computing", *WAITS, "sync")


def draw(run: Run, canvas: Canvas) -> Figure | None:
    if not len(run.training):
        return None
    split = run.training.once(_split)
    most = _MAX_NARROW_BARS if canvas.narrow else _MAX_BARS
    ranks, epochs = (_panel(_rows(split[name], most), name, canvas) for name in ("rank", "epoch"))
    caption = (
        "All steps, including the first of each epoch. Reading, decoding, queueing in the loader and hand-over are "
        "what an accelerator waited for. A slow rank shows up there; the others wait for it in sync."
    )
    return Figure("Accelerator time", caption, ranks & epochs if canvas.narrow else ranks | epochs)


def _split(rows: StepTable) -> dict[str, dict[int, Floats]]:
    """Return the ns of each rank, and of each epoch, spent on each part, in the order of `_SHOWN`."""
    sums: dict[str, dict[int, Floats]] = {"rank": {}, "epoch": {}}
    for own in chunks(rows):
        for part in own.by_epoch:
            waits = wait_parts(part).sum(axis=0).tolist()
            spent = np.array([int(part["compute_ns"].sum()), *waits, int(part["sync_ns"].sum())], np.float64)
            for label, by_label in sums.items():
                (value,) = part.values(label)
                by_label[value] = by_label.get(value, np.zeros(len(spent))) + spent
    return sums


def _rows(sums: dict[int, Floats], most: int) -> list[Row]:
    """Return the share of each part for each rank or epoch, or for groups of neighbours to have at most `most` bars."""
    rows = []
    for group in parts(sorted(sums), most):
        name = str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"
        spent = sum((sums[owner] for owner in group), start=np.zeros(len(_SHOWN)))
        total = float(spent.sum()) or 1.0
        for place, (part, value) in enumerate(zip(_SHOWN, spent.tolist(), strict=True)):
            percent = float(f"{100 * value / total:.4g}")
            rows.append({"at": name, "part": part_name(part), "percent": percent, "order": place})
    return rows


def _panel(rows: list[Row], name: str, canvas: Canvas) -> alt.Chart:
    order = list(dict.fromkeys(row["at"] for row in rows))
    shown = [part for part in _SHOWN if any(row["percent"] for row in rows if row["part"] == part_name(part))]
    axis = alt.Axis(labelAngle=-90 if any("-" in at for at in order) else 0, labelOverlap=True)
    legends = legend(canvas, 2 if canvas.narrow else 3)
    chart = alt.Chart(data([row for row in rows if row["percent"]])).mark_bar()
    encoded = chart.encode(
        x=alt.X("at:N", sort=order, title=name, axis=axis),
        y=alt.Y("percent:Q", title="% of the time", scale=alt.Scale(domain=[0, 100])),
        color=alt.Color("part:N", scale=part_colours(shown), legend=legends),
        order=alt.Order("order:Q"),
    )
    return encoded.properties(width=canvas.width if canvas.narrow else (canvas.width - 60) // 2, height=200)
