"""What `dlemu audit` prints: a line a run under its folder, the findings by rule, and one line of sum."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dlemu.mlperf.audit.places import Place, common_folder, places
from dlemu.mlperf.audit.run import Cell
from dlemu.mlperf.finding import Finding

Row = Mapping[str, Cell]
Told = tuple[Row, Sequence[Finding]]
Line = tuple[str, dict[str, Any]]
"""A line and its style."""

_WIDEST = 26
_SHOWN = 3
_STYLES: dict[str, dict[str, Any]] = {"error": {"fg": "red", "bold": True}, "warning": {"fg": "yellow"}, "info": {}}


def lines(told: Sequence[Told]) -> Iterator[Line]:
    """Yield what is printed of the runs, in the order of their paths."""
    top = common_folder([str(row["path"]) for row, _ in told])
    placed = _placed([row for row, _ in told])
    width = min(_WIDEST, max(len(place.run) for place, _ in placed))
    yield from _head(width)
    for system, group in groupby(placed, key=lambda one: one[0].system):
        runs = list(group)
        yield f"{system}: {_what([row for _, row in runs])}", {"bold": True}
        yield from (_line(place.run, width, row) for place, row in runs)
    yield "", {}
    yield from _legend()
    yield from _findings(told, top)
    yield from _sum([row for row, _ in told])


def _placed(rows: Sequence[Row]) -> list[tuple[Place, Row]]:
    """Return each row with its place, system by system."""
    found = places([str(row["path"]) for row in rows])
    return sorted(zip(found, rows, strict=True), key=lambda one: (one[0].parent, one[0].run))


def _head(width: int) -> Iterator[Line]:
    for text in (
        f"  {'':{width}} |{'AU in percent':^27}|{'loss in percent of the time':^35}|{'samples/s':^20}|",
        f"  {'run':{width}} |{'printed':>8}{'again':>9}{'rules':>8}  |"
        f"{'first':>7}{'load':>7}{'late':>6}{'slower':>7}{'barrier':>8}|{'printed':>11}{'again':>9}| found",
    ):
        yield text, {"dim": True}


def _what(rows: list[Row]) -> str:
    kinds = {(row["workload"], row["accelerator"], row["accelerators"], row["hosts"]) for row in rows}
    if len(kinds) > 1:
        return f"{len(rows)} runs of {len(kinds)} kinds"
    workload, accelerator, count, hosts = kinds.pop()
    on = f" on {hosts} host{'s' if hosts != 1 else ''}" if hosts else ""
    return f"{workload or 'workload unknown'}, {count or '?'} x {accelerator or 'accelerator'}{on}"


def _line(label: str, width: int, row: Row) -> Line:
    by = row["printed_by"]
    again = _number(row[f"au_{by}_percent"], 2) if by else "-"
    if again == "-" and row["au_least_percent"] is not None:
        again = f">={_number(row['au_least_percent'], 2)}"
    loss = [row[f"loss_{name}_percent"] for name in ("first_step", "load", "oversleep", "slower_rank", "barrier")]
    other = row["loss_all_other_percent"]
    shares = "".join(f"{_number(value, 2):>{width}}" for value, width in zip(loss, (7, 7, 6, 7, 8), strict=True))
    if other is not None:
        shares = f"{_number(loss[0], 2):>7}{'all other ' + _number(other, 2):>28}"
    text = (
        f"  {_short(label, width):{width}} |{_number(row['au_printed_percent'], 2):>8}{again:>9}"
        f"{_number(row['au_rules_percent'], 2):>8}  |{shares}|{_number(row['samples_per_second_printed'], 2):>11}"
        f"{_apart(row):>9}| {_found(row)}"
    )
    return text, _STYLES["error" if row["errors"] else "info"]


def _short(label: str, width: int) -> str:
    return label if len(label) <= width else f"...{label[3 - width :]}"


def _apart(row: Row) -> str:
    printed, again = row["samples_per_second_printed"], row[f"samples_per_second_{row['printed_by'] or 'dlio'}"]
    if not isinstance(printed, float) or not isinstance(again, float) or not printed:
        return "-"
    return f"{100 * (again / printed - 1):+.2f} %"


def _found(row: Row) -> str:
    parts = [f"{row[name]} {name[: -1 if row[name] == 1 else None]}" for name in ("errors", "warnings") if row[name]]
    return ", ".join(parts)


def _number(value: Cell, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else "-"


def _legend() -> Iterator[Line]:
    for text in (
        "again: recomputed from the steps that the ranks kept; >= from block times alone, which give only a bound",
        "rules: compute / running time as the text of the rules says, no step dropped",
        "first: first step of each epoch; load: waits for batches; late: the host woke late;",
        "slower: waits for the slowest rank; barrier: the rest of the blocks' time, outside of all steps",
    ):
        yield text, {"dim": True}
    yield "", {}


def _findings(told: Sequence[Told], top: str) -> Iterator[Line]:
    by_rule: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for row, findings in told:
        for finding in findings:
            where = os.path.relpath(str(row["path"]), top)
            by_rule.setdefault((finding.severity, finding.rule), []).append((where, finding))
    order = list(_STYLES)
    for (severity, rule), found in sorted(by_rule.items(), key=lambda one: (order.index(one[0][0]), one[0][1])):
        runs = len({where for where, _ in found})
        yield f"{severity} {rule}: {runs} run{'s' if runs != 1 else ''}", _STYLES[severity]
        for where, finding in found[: 1 if severity == "info" else _SHOWN]:
            yield f"  {where}: {finding.seen}", {}
        if len(found) > _SHOWN and severity != "info":
            yield f"  and {len(found) - _SHOWN} more", {}
        yield f"  wanted: {found[0][1].wanted}; to do: {found[0][1].fix}", {"dim": True}


def _sum(rows: list[Row]) -> Iterator[Line]:
    wrong = sum(bool(row["errors"]) for row in rows)
    kept = sum(row["basis"] == "steps" for row in rows)
    blocks = sum(row["basis"] == "blocks" for row in rows)
    style = _STYLES["error"] if wrong else {"fg": "green", "bold": True}
    yield (
        f"{len(rows)} run{'s' if len(rows) != 1 else ''}: {kept} recomputed from all steps, {blocks} from block times,"
        f" {len(rows) - kept - blocks} from less; {wrong} with errors",
        style,
    )
