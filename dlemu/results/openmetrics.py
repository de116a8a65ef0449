"""Figures of a run in progress as text for Prometheus.

The text is valid both as OpenMetrics and for node_exporter's textfile collector: only gauges, no timestamps, and
`# EOF` at the end, which is a comment for the latter.
https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from datagen.atomic import write_text
from datagen.errors import UserError
from datagen.regular import open_regular
from dlemu.results.progress import Figure, Progress

PREFIX = "dlemu_"
FIRST = f"# TYPE {PREFIX}active gauge\n"
"""First line of every file, by which a file that may be replaced is recognised."""


def check_replaceable(path: str) -> None:
    """Raise UserError for a file that dlemu did not write, or one in a folder that is missing or can't be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UserError(f"output.openmetrics is {path}, but there is no folder {folder}: create it, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):  # access(2): false on a read-only file system, for root too
        raise UserError(
            f"output.openmetrics is {path}, but {folder} can't be written: name a file in a folder that can"
        )
    try:
        with open(open_regular(path), encoding="utf-8", errors="replace") as file:
            ours = file.readline() == FIRST
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"output.openmetrics is {path}, which can't be read ({error.strerror}): name a file") from error
    if not ours:
        raise UserError(f"output.openmetrics is {path}, a file that dlemu did not write: name another, or remove it")


def write_metrics(path: str, progress: Progress | None, labels: Mapping[str, str], *, active: bool) -> None:
    """Replace the file atomically; raises SpaceError."""
    folder, name = os.path.split(os.path.abspath(path))
    write_text(folder, name, metrics_text(progress, labels, active=active), advice="set output.openmetrics elsewhere")


def metrics_text(progress: Progress | None, labels: Mapping[str, str], *, active: bool) -> str:
    """Return the figures of a run, labelled with the run; once it has ended, only dlemu_active 0."""
    families: dict[str, list[Figure]] = {}
    for figure in (Figure(*_active(active)), *(_figures(progress) if progress is not None and active else ())):
        families.setdefault(figure.name, []).append(figure)
    lines = []
    for name, figures in families.items():
        lines += [f"# TYPE {PREFIX}{name} gauge", f"# HELP {PREFIX}{name} {_escaped(figures[0].meaning)}"]
        lines += [f"{PREFIX}{name}{_labels({**labels, **one.labels})} {one.value:.10g}" for one in figures]
    return "\n".join([*lines, "# EOF", ""])


def _active(active: bool) -> tuple[str, float, str]:
    return "active", float(active), "1 while the run is in progress, 0 when it has ended"


def _figures(progress: Progress) -> Sequence[Figure]:
    of_all = (
        ("done_ratio", progress.done_ratio, "Share of the run that its slowest rank has completed"),
        ("left_seconds", progress.seconds_left, "Time left, estimated from the time so far"),
    )
    known = (Figure(name, value, meaning) for name, value, meaning in of_all if value is not None)
    return (*known, *progress.figures)


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text
