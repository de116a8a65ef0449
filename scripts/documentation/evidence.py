"""docs/evidence/NAME.md: a page that sums up the data files in docs/evidence/NAME."""

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
"""Folder -> title of its page, a sentence about its files, and the page that says how to read them."""
_CHECKS = ["case", "what", "theory", "measured", "off by", "CPU wait", ""]
_FIGURES = ["what", "dlemu", "beside", "", "ratio", "wanted", ""]
_PLAIN = "plain read of the same bytes"
_HIDDEN_COLUMNS = {
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
_MAX_ROWS = {"validation": 12}  # folder -> its page leaves out tables with more rows, other than those of checks
_SERIES = {"room", "campaign"}
"""First columns of tables with several samples of a package, of which the page shows the latest."""
_MACHINE = re.compile(r"( \d\d:\d\d)?, \d+ cores, \d+ GB, [^;]*?( minutes| at the (start|end) [\d.]+)\.")
_OFF_BY = re.compile(r"(?P<off>[+-][\d.]+) *(?P<unit>\S*) *\(wanted (?P<sign>\+-|<=) (?P<margin>[\d.]+)\)")


class Check(NamedTuple):
    """The cells of a row of a validation."""

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
    def deviation(self) -> float:
        """The difference from what was wanted, relative to the margin; 0 for a word."""
        match = _OFF_BY.match(self.off_by)
        if match is None:
            return 0.0
        off, margin = float(match["off"]), float(match["margin"])
        if match["sign"] == "+-":
            return abs(off) / margin if margin else abs(off)
        return max(0.0, off / margin if margin else off)


def page(folder: Path) -> str:
    """Return the page of a folder of data files, with a section for each file, by name."""
    title, about, how = HELP[folder.name]
    source = f"`docs/evidence/{folder.name}/*.json`"
    head = f"# {title}\n\nMade by `scripts/docs` from {source}, which have every row. {about} [How to read it]({how})\n"
    files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    workloads = {name: file["tables"][0]["rows"] for name, file in files.items() if _is_workload(file["tables"][0])}
    max_rows = _MAX_ROWS.get(folder.name, math.inf)
    parts = [_section(name, file, max_rows) for name, file in files.items() if name not in workloads]
    return "\n".join([head, *parts, *([_workloads(workloads)] if workloads else [])])


def _section(name: str, file: dict[str, Any], max_rows: float) -> str:
    rows_by_columns: dict[tuple[str, ...], list[list[str]]] = {}
    for table in file["tables"]:
        if table["columns"] == _CHECKS or len(table["rows"]) <= max_rows:
            rows_by_columns.setdefault(tuple(table["columns"]), []).extend(table["rows"])
    tables = (_table(list(columns), rows) for columns, rows in rows_by_columns.items())
    return "\n\n".join([f"## {name}", _MACHINE.sub(".", file["summary"]), *tables]) + "\n"


def _is_workload(table: dict[str, Any]) -> bool:
    """Return whether a table compares dlemu's reads of a workload's format with plain reads of the same files."""
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
    shown = [number for number, column in enumerate(columns) if column not in _HIDDEN_COLUMNS]
    return _markdown([columns[number] for number in shown], [[row[number] for number in shown] for row in rows])


def _figure(row: Sequence[str]) -> list[str]:
    what, dlemu, beside, name, ratio, wanted, status = row
    judged = wanted if wanted == "-" else f"{wanted}: {status}"
    return [what, dlemu, beside if beside == "-" else f"{beside}, {name}", ratio, judged]


def _checks(checks: Sequence[Check]) -> str:
    """Return a table of the quantities that are off: the worst check and all missed; then name the exact quantities."""
    rows, exact = list[list[str]](), list[str]()
    for quantity in dict.fromkeys(check.quantity for check in checks):
        group = [check for check in checks if check.quantity == quantity]
        passed = f"{sum(check.status == 'ok' for check in group)}/{len(group)}"
        worst = max(group, key=lambda check: check.deviation)
        if not worst.deviation:
            exact.append(f"{quantity} ({passed})")
        shown = [check for check in group if check.status == "MISSED" or (check is worst and check.deviation)]
        rows += [[check.case, quantity, check.theory, check.measured, check.off_by, passed] for check in shown]
    table = _markdown(["case", "what", "wanted", "measured", "off by", "pass"], rows) if rows else ""
    also = f"As wanted: {', '.join(exact)}." if exact else ""
    return "\n\n".join(filter(None, [table, also]))


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, *lines = (f"| {' | '.join(line)} |" for line in (columns, *rows))
    return "\n".join([head, f"|{'---|' * len(columns)}", *lines])
