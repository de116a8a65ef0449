"""docs/evidence/NAME.md: what a reader needs of the data files in docs/evidence/NAME."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HELP = {
    "validation": (
        "Validation, measured",
        "`scripts/validate --save` measures them. Of each quantity a table has the case farthest from what was wanted, "
        "and all that missed; a long table is in its file alone.",
        "../validation.md",
    ),
    "benchmarks": ("Benchmarks", "`scripts/bench --save` measures them; here are those judged.", "../benchmarks.md"),
    "faults": ("Faults and what comes of them", "They name the test of each fault.", "../reliability.md"),
    "mutation": (
        "Mutants, measured",
        "`scripts/mutate` measures them. Of each package the table has the latest sample.",
        "../reliability.md",
    ),
}
"""Folder -> title of its page, what to know of its files, and the page that says how to read it."""
_CHECKS = ["case", "what", "theory", "measured", "off by", "CPU wait", ""]
_FIGURES = ["what", "dlemu", "beside", "", "ratio", "wanted", ""]
_PLAIN = "plain read of the same bytes"
_IN_FILES_ONLY = {
    "AU % of one more",
    "limited by",
    "CPU wait",
    "null model",
    "test",
    "job waited for a core",
    "trials",
    "every count at full length",
    "by prediction",
    "seen",
    "run",
}
_LONGEST = {"validation": 12}  # folder -> the most rows of a table of single cases that its page shows
_SERIES = {"room", "campaign"}
"""First columns of tables in which samples of one package follow each other."""
_MACHINE = re.compile(r"( \d\d:\d\d)?, \d+ cores, \d+ GB, [^;]*?( minutes| at the (start|end) [\d.]+)\.")
_OFF_BY = re.compile(r"(?P<off>[+-][\d.]+) *(?P<unit>\S*) *\(wanted (?P<sign>\+-|<=) (?P<margin>[\d.]+)\)")


class Check(NamedTuple):
    """A row of a validation, as its cells."""

    case: str
    what: str
    theory: str
    measured: str
    off_by: str
    cpu_wait: str
    status: str

    @property
    def quantity(self) -> str:
        """What is measured, without the numbers of the case."""
        return re.sub(r" \([\w ,]*\d+ to \d+\).*", "", self.what)

    @property
    def farness(self) -> float:
        """How far from what was wanted, in margins; 0 for what is a word."""
        found = _OFF_BY.match(self.off_by)
        if found is None:
            return 0.0
        off, margin = float(found["off"]), float(found["margin"])
        if found["sign"] == "+-":
            return abs(off) / margin if margin else abs(off)
        return max(0.0, off / margin if margin else off)


def page(folder: Path) -> str:
    """Return the page of a folder of data files: a section a file, by name."""
    title, about, how = HELP[folder.name]
    source = f"`docs/evidence/{folder.name}/*.json`"
    head = f"# {title}\n\nMade by `scripts/docs` from {source}, which have every row. {about} [How to read it]({how})\n"
    files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    workloads = {name: file["tables"][0]["rows"] for name, file in files.items() if _is_workload(file["tables"][0])}
    longest = _LONGEST.get(folder.name, math.inf)
    parts = [_section(name, file, longest) for name, file in files.items() if name not in workloads]
    return "\n".join([head, *parts, *([_workloads(workloads)] if workloads else [])])


def _section(name: str, found: dict[str, Any], longest: float) -> str:
    summary = _MACHINE.sub(".", found["summary"])
    tables = (_table(table["columns"], table["rows"]) for table in found["tables"] if _is_shown(table, longest))
    return "\n\n".join([f"## {name}", summary, *tables]) + "\n"


def _is_shown(table: dict[str, Any], longest: float) -> bool:
    return table["columns"] == _CHECKS or len(table["rows"]) <= longest


def _is_workload(table: dict[str, Any]) -> bool:
    """Say whether a table is that of a workload's format beside plain reads of its files."""
    return table["columns"] == _FIGURES and table["rows"][0][:1] + table["rows"][0][3:4] == ["samples/s", _PLAIN]


def _workloads(files: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Return one table of all workloads."""
    rows = []
    for name, figures in files.items():
        beside = [figure for figure in figures if figure[3] == _PLAIN]
        cells = [value if ratio == "-" else f"{value} ({ratio})" for _, value, _, _, ratio, *_ in beside]
        judged = [f"{what}, {wanted}: {status}" for what, *_, wanted, status in figures if wanted != "-"]
        rows.append([name, *cells, "; ".join(judged) or "-"])
    table = _markdown(["workload", *(figure[0] for figure in beside), "wanted"], rows)
    return f"## Workloads\n\nIn brackets: the ratio to a {_PLAIN}.\n\n{table}\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if columns == _CHECKS:
        return _checks([Check(*row) for row in rows])
    if columns == _FIGURES:
        judged = [row for row in rows if row[5] != "-"] or rows
        return _markdown(["what", "dlemu", "beside it", "ratio", "wanted"], [_figure(row) for row in judged])
    if columns[0] in _SERIES:
        rows = list({row[0].partition(",")[0]: row for row in rows}.values())
    shown = [number for number, column in enumerate(columns) if column not in _IN_FILES_ONLY]
    return _markdown([columns[number] for number in shown], [[row[number] for number in shown] for row in rows])


def _figure(row: Sequence[str]) -> list[str]:
    what, dlemu, beside, name, ratio, wanted, status = row
    judged = wanted if wanted == "-" else f"{wanted}: {status}"
    return [what, dlemu, beside if beside == "-" else f"{beside}, {name}", ratio, judged]


def _checks(checks: Sequence[Check]) -> str:
    """Return a row for each quantity that is off, and after the table those that are exact, such as words."""
    rows, exact = list[list[str]](), list[str]()
    for what in dict.fromkeys(check.quantity for check in checks):
        alike = [check for check in checks if check.quantity == what]
        held = f"{sum(check.status == 'ok' for check in alike)}/{len(alike)}"
        farthest = max(alike, key=lambda check: check.farness)
        if not farthest.farness:
            exact.append(f"{what} ({held})")
        shown = [check for check in alike if check.status == "MISSED" or (check is farthest and check.farness)]
        rows += [[check.case, what, check.theory, check.measured, check.off_by, held] for check in shown]
    table = _markdown(["case", "what", "wanted", "measured", "off by", "pass"], rows) if rows else ""
    also = f"As wanted: {', '.join(exact)}." if exact else ""
    return "\n\n".join(filter(None, [table, also]))


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, *lines = (f"| {' | '.join(line)} |" for line in (columns, *rows))
    return "\n".join([head, f"|{'---|' * len(columns)}", *lines])
