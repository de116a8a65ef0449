"""The figure of a probe: speed by requests in flight."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.probe.result import ProbeAnswer, size_name
from dlemu.report.figure_base import Figure, lines

_SATURATION_SHARE = 0.9  # of the highest rate: from here on, more requests in flight add little


def speed_by_depth(answer: ProbeAnswer) -> Figure | None:
    """Return GB/s over requests in flight, one line per access pattern and size; None without cells."""
    if not answer.cells:
        return None
    cells = sorted(answer.cells, key=lambda cell: cell.in_flight)
    rows = [
        {"line": f"{cell.access} {size_name(cell.size_bytes)}", "at": cell.in_flight, "value": cell.mb_per_second / 1e3}
        for cell in cells
    ]
    axis = alt.Axis(values=sorted({cell.in_flight for cell in cells}), grid=False, format=",~f")
    x = alt.X("at:Q", title="requests in flight", scale=alt.Scale(type="log", base=2), axis=axis)
    highest = max(cell.mb_per_second for cell in cells)
    enough = next(cell.in_flight for cell in cells if cell.mb_per_second >= _SATURATION_SHARE * highest)
    title = f"Beyond {enough:,} in flight, more requests add less than {100 - 100 * _SATURATION_SHARE:.0f} %"
    return Figure(title, "Each point is one measurement.", lines(rows, x, "GB/s", points=True))


FIGURES = (speed_by_depth,)
