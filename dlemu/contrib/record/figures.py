"""The figure of a recorded job."""

from __future__ import annotations

import altair as alt

from dlemu.contrib.record.answer import RecordAnswer
from dlemu.report.figure_base import AMBER, GREEN, PURPLE, RED, TEAL, WIDTH, Figure, colours, data, legend

_COLOURS = (GREEN, RED, PURPLE, AMBER, TEAL)


def step_parts(answer: RecordAnswer) -> Figure | None:
    """A mean step of the recorded job as a bar: computing, and what it waited for."""
    parts = answer.recording.parts.named()
    rows = [
        {"part": name, "ms": float(f"{1000 * seconds:.5g}"), "place": place}
        for place, (name, seconds) in enumerate(parts)
    ]
    chart = (
        alt.Chart(data(rows), width=WIDTH, height=60)
        .mark_bar()
        .encode(
            x=alt.X("sum(ms):Q", title="ms per step, mean"),
            color=alt.Color("part:N", scale=colours([name for name, _ in parts], _COLOURS), legend=legend(3)),
            order=alt.Order("place:O"),
        )
    )
    caption = (
        "A mean step of the real job: computing, and waits of its trainer by what the workers were doing meanwhile."
    )
    return Figure("Where a step's time goes", caption, chart)
