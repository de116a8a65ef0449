"""AU by epoch and by rank, with the pass line and the emulator's ceiling."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import (
    BLUE,
    GREEN,
    PURPLE,
    Canvas,
    Figure,
    Row,
    data,
    parts,
    percent_domain,
    rounded,
    rule,
)

ORDER = 10
_MAX_POINTS = 64  # groups of neighbours are drawn as one point with their range where there would be more


def draw(run: Run, canvas: Canvas) -> Figure | None:
    metrics = run.summary.metrics
    au = metrics.au_percent
    if au is None or au.mean is None:
        return None
    levels = [metrics.au_threshold_percent]
    if metrics.ceiling_au_percent is not None:
        levels.append(metrics.ceiling_au_percent)
    values = [value for value in (*au.per_epoch, *au.per_rank) if value is not None]
    domain = percent_domain([*values, *levels])
    epochs = _panel(au.per_epoch, "epoch", 1, levels, domain, canvas)
    ranks = _panel(au.per_rank, "rank", 0, levels, domain, canvas)
    caption = (
        "Compute time over total accelerator time, counted steps only. Ranks step together, so a slow one holds all "
        "of them back; the figure of accelerator time below shows which."
    )
    return Figure(
        "Accelerator utilisation by epoch and rank", caption, epochs & ranks if canvas.narrow else epochs | ranks
    )


def _panel(
    values: Sequence[float | None], name: str, first: int, levels: list[float], domain: list[float], canvas: Canvas
) -> alt.LayerChart:
    rows = _rows(values, first)
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


def _rows(values: Sequence[float | None], first: int) -> list[Row]:
    """Return one point per value, or per group of neighbours their mean, lowest and highest; `first` numbers them."""
    by_place = {place + first: value for place, value in enumerate(values) if value is not None}
    rows = []
    for part in parts(list(by_place), _MAX_POINTS):
        group = [by_place[place] for place in part]
        mean, low, high = rounded([sum(group) / len(group), min(group), max(group)], 6)
        rows.append({"at": sum(part) / len(part), "AU": mean, "low": low, "high": high})
    return rows
