"""The first screen of a probe, the table of its cells, and its figures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from dlemu.jobs.probe.result import ProbeAnswer, size_name
from dlemu.jobs.probe.run import read_rates
from dlemu.report.screen import Said, Screen, rate
from dlemu.report.table import Table, columns
from dlemu.report.units import number
from dlemu.results.kinds import Parts

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_ENGINES = {"fio": "fio, libaio, direct", "threads": "dlemu's own requests by threads, direct"}


def _screen(answer: ProbeAnswer, folder: str) -> Screen:
    """Return the screen, with the cells of most bytes/s and of most requests/s for each access pattern."""
    lines = []
    for access in sorted({cell.access for cell in answer.cells}):
        cells = [cell for cell in answer.cells if cell.access == access]
        fastest = [max(cells, key=attrgetter("mb_per_second")), max(cells, key=attrgetter("iops"))]
        for cell in dict.fromkeys(fastest):
            requests = f"{cell.iops:,.0f} /s of {size_name(cell.size_bytes)}, {number(cell.latency_ms.mean)} ms each"
            speed = f"{rate(cell.mb_per_second)}, {requests} ({cell.in_flight} in flight)"
            lines.append(Said(access, speed, tone="strong"))
    if os.path.isdir(folder) and not all(cell.writes for cell in answer.cells):  # a prediction needs a saved read
        command = f"dlemu predict workload=NAME --drive {shlex.quote(folder)}"
        lines.append(Said("next", command, "how many accelerators it feeds"))
    hosts = ", ".join(host.host for host in answer.environment.hosts)
    return Screen(title=f"Probe of {answer.target} by {hosts}", lines=lines, notes=answer.issues, folder=folder)


def _sections(answer: ProbeAnswer, _: str) -> Iterator[Table]:
    head = columns("access", "size", "jobs", "depth", "MB/s", "/s", "mean\nms", "p99", "p99.9", right=range(1, 9))
    rows = []
    for cell in answer.cells:
        latency = cell.latency_ms
        shape = (cell.access, size_name(cell.size_bytes), str(cell.jobs), str(cell.depth))
        speed = (number(cell.mb_per_second), f"{cell.iops:,.0f}")
        rows.append([*shape, *speed, *map(number, (latency.mean, latency.p99, latency.p999))])
    note = f"measured by {_ENGINES[answer.engine]}; through host memory"
    yield Table(title="Each size and depth", columns=head, rows=rows, notes=[note], folded=True)


def _charts(answer: ProbeAnswer, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.probe.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, answer)


PARTS = Parts(answer_type=ProbeAnswer, screen=_screen, sections=_sections, charts=_charts, rates=read_rates)
