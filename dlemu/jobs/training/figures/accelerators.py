"""The accelerators' time: AU by epoch and by rank, where it was lost, and what each rank did."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from dlemu.jobs.training.result import Run
from dlemu.metrics.loss import PARTS as WAITS
from dlemu.metrics.loss import wait_parts
from dlemu.metrics.over_time import Floats
from dlemu.metrics.rows import StepTable, chunks
from dlemu.report.figure_base import (
    BLUE,
    GREEN,
    INK,
    PADDING,
    PURPLE,
    Canvas,
    Figure,
    Row,
    data,
    legend,
    part_colours,
    part_name,
    parts,
    percent_domain,
    rounded,
    rule,
)
from dlemu.report.units import flat

_MAX_POINTS = 64  # groups of neighbours are drawn as one point with their range where there would be more


def utilisation(run: Run, canvas: Canvas) -> Figure | None:
    """AU by epoch and by rank, with the pass line and the emulator's ceiling."""
    metrics = run.summary.metrics
    au = metrics.au_percent
    if au is None or au.mean is None:
        return None
    levels = [metrics.au_threshold_percent]
    if metrics.ceiling_au_percent is not None:
        levels.append(metrics.ceiling_au_percent)
    values = [value for value in (*au.per_epoch, *au.per_rank) if value is not None]
    domain = percent_domain([*values, *levels])
    epochs = _au_panel(au.per_epoch, "epoch", 1, levels, domain, canvas)
    ranks = _au_panel(au.per_rank, "rank", 0, levels, domain, canvas)
    caption = "Compute time over total accelerator time, counted steps only. A slow rank holds all of them back."
    return Figure(
        "Accelerator utilisation by epoch and rank", caption, epochs & ranks if canvas.narrow else epochs | ranks
    )


def _au_panel(
    values: Sequence[float | None], name: str, first: int, levels: list[float], domain: list[float], canvas: Canvas
) -> alt.LayerChart:
    rows = _au_points(values, first)
    low, high = rows[0]["at"], rows[-1]["at"]
    places = sorted({round(row["at"]) for row in rows})
    axis = alt.Axis(values=places[:: -(-len(places) // 10)], grid=False, format="d")
    x = alt.X("at:Q", title=name, axis=axis, scale=alt.Scale(domain=[low - 0.5, high + 0.5], nice=False))
    scale = alt.Scale(domain=domain, nice=False)
    y, level = (alt.Y(field, title="AU, %", scale=scale) for field in ("AU:Q", "level:Q"))
    base = alt.Chart(data(rows))
    points = base.mark_point(filled=True, size=45, color=BLUE, opacity=1).encode(x=x, y=y)
    layers = [rule(levels[0], f"pass {levels[0]:g} %", GREEN, level)]
    if len(levels) > 1:
        layers.append(rule(levels[1], f"ceiling {levels[1]:.1f} %", PURPLE, level, dashed=False, above=False))
    if any(row["low"] != row["high"] for row in rows):
        layers.append(
            base.mark_rule(color=BLUE).encode(x=x, y=alt.Y("low:Q", title="AU, %", scale=scale), y2=alt.Y2("high:Q"))
        )
    width = canvas.width if canvas.narrow else (canvas.width - 60) // 2
    return alt.layer(*layers, points).properties(width=width, height=190)


def _au_points(values: Sequence[float | None], first: int) -> list[Row]:
    """Return one point per value, or per group of neighbours their mean, lowest and highest; `first` numbers them."""
    by_place = {place + first: value for place, value in enumerate(values) if value is not None}
    rows = []
    for part in parts(list(by_place), _MAX_POINTS):
        group = [by_place[place] for place in part]
        mean, low, high = rounded([sum(group) / len(group), min(group), max(group)], 6)
        rows.append({"at": sum(part) / len(part), "AU": mean, "low": low, "high": high})
    return rows


def loss_parts(run: Run, canvas: Canvas) -> Figure | None:
    """Where AU was lost: the parts of all accelerators' time that were not computation."""
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
    caption = f"{loss.total:.2f} % in total, by what the slowest accelerator of each step waited for."
    width = canvas.width - (130 if canvas.narrow else 160)
    return Figure(
        "Where AU was lost",
        caption,
        alt.layer(bars, labels).properties(width=width, height=26 * len(rows), padding=PADDING),
    )


_MAX_BARS, _MAX_NARROW_BARS = 32, 16  # neighbours share a bar where there would be more, to keep them visible
_SHOWN = ("computing", *WAITS, "sync")


def step_split(run: Run, canvas: Canvas) -> Figure | None:
    """The accelerators' time by rank and by epoch: computing, waiting (for what), and synchronising with others."""
    if not len(run.training):
        return None
    split = run.training.once(_split)
    most = _MAX_NARROW_BARS if canvas.narrow else _MAX_BARS
    ranks, epochs = (_split_panel(_split_rows(split[name], most), name, canvas) for name in ("rank", "epoch"))
    caption = "All steps. A slow rank shows up in what an accelerator waited for; the others wait for it in sync."
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


def _split_rows(sums: dict[int, Floats], most: int) -> list[Row]:
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


def _split_panel(rows: list[Row], name: str, canvas: Canvas) -> alt.Chart:
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
