"""What `dlemu audit` prints: a table for each system with a row per run; the findings by rule; and a summary line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, audit_row, common_folder, places
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.lines import finding_lines
from dlemu.contrib.mlperf.rules.known import Located
from dlemu.report.table import Cell, Line, Table, columns
from dlemu.results.wording import count

_AU = ("AU %", "recomputed", "whole", "sustained", "credit")
_LOSSES = ("first_step", "load", "oversleep", "slower_rank", "barrier", "all_other")
_HEADS = ("run", *_AU, "first", "load", "late", "slower", "barrier", "other", "samples/s", "difference", "findings")
_LEGEND = (
    "recomputed: from the steps that the ranks recorded; >=: a bound, as only block times were recorded",
    "difference: of the recomputed samples/s from the printed",
    "whole: compute time / running time of all epochs, with no step left out (as in the text of v1.0's rules)",
    "sustained: AU of an endless epoch (for other tools' runs a lower bound); credit: share of the counted",
    "steps' batches that had been read before these steps began (for other tools' runs an upper bound)",
    "losses in % of the time: first: first step of each epoch; load: waits for batches; late: the host woke late;",
    "slower: waits for the slowest rank; barrier: the rest of the blocks' time; other: all but first, without steps",
    "",
)


def audit_tables(runs: Sequence[AuditedRun]) -> Iterator[Table]:
    """Yield a table for each system, in the order of their paths."""
    rows = [audit_row(run) for run in runs]
    placed = sorted(zip(places([row.path for row in rows]), rows, strict=True), key=lambda each: each[0].run)
    placed.sort(key=lambda each: each[0].parent)
    for system, group in groupby(placed, key=lambda each: each[0].system):
        members = list(group)
        title = f"{system}: {_what([row for _, row in members])}"
        last, right = len(_HEADS) - 1, range(1, len(_HEADS) - 1)
        across = columns(*_HEADS, right=right, whole=range(last + 1))
        yield Table(title=title, columns=across, rows=[_cells(place.run, row) for place, row in members], dense=True)


def _what(rows: Sequence[AuditRow]) -> str:
    kinds = {(row.workload, row.accelerator, row.accelerators, row.hosts) for row in rows}
    if len(kinds) > 1:
        return f"{len(rows)} runs of {len(kinds)} kinds"
    workload, accelerator, accelerators, hosts = kinds.pop()
    on = f" on {count(hosts, 'host')}" if hosts else ""
    return f"{workload or 'workload unknown'}, {accelerators or '?'} x {accelerator or 'accelerator'}{on}"


def _cells(run: str, row: AuditRow) -> list[Cell]:
    recomputed = _number(row.au_recomputed_percent)
    if recomputed == "-" and row.au_least_percent is not None:
        recomputed = f">={_number(row.au_least_percent)}"
    percent, is_least = row.sustained_percent
    return [
        Line(run, "bad" if row.errors else "plain"),
        _number(row.au_printed_percent),
        recomputed,
        _number(row.au_whole_percent),
        ">=" * is_least + _number(percent),
        _number(row.prefetch_credit_percent),
        *(_number(getattr(row, f"loss_{name}_percent")) for name in _LOSSES),
        _number(row.samples_per_second_printed),
        _rate_difference(row),
        ", ".join(count(n, kind) for n, kind in ((row.errors, "error"), (row.warnings, "warning")) if n),
    ]


def _rate_difference(row: AuditRow) -> str:
    printed = row.samples_per_second_printed
    recomputed = row.samples_per_second_recomputed if row.printed_by else row.samples_per_second_dlio
    if recomputed is None or not printed:
        return "-"
    return f"{100 * (recomputed / printed - 1):+.2f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def audit_lines(runs: Sequence[AuditedRun]) -> Iterator[Cell]:
    """Yield what the columns mean, the findings, and a summary line."""
    yield from _LEGEND
    top = common_folder([run.path for run in runs])
    yield from finding_lines([Located(run.path, finding) for run in runs for finding in run.findings], top)
    rows = [audit_row(run) for run in runs]
    wrong, kept = sum(bool(row.errors) for row in rows), sum(row.basis == "steps" for row in rows)
    blocks = sum(row.from_blocks for row in rows)
    yield Line(
        f"{count(len(rows), 'run')}: {kept} recomputed from all steps, {blocks} from block times,"
        f" {len(rows) - kept - blocks} from less; {wrong} with errors",
        "bad" if wrong else "good",
    )
