"""What `dlemu audit` prints: a table for each system with a row per run; the findings by rule; and a summary line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, audit_row
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.lines import finding_lines
from dlemu.contrib.mlperf.rules.known import at
from dlemu.report.table import Cell, Line, Table, columns
from dlemu.results.wording import count

_AU = ("printed AU %", "recomputed", "whole", "sustained", "credit")
_LOSSES = ("first_step", "load", "oversleep", "slower_rank", "barrier")
_HEADS = ("run", "of", *_AU, "first", "load", "late", "slower", "barrier", "samples/s", "difference", "findings")
_LEGEND = (
    "recomputed: from the steps that the ranks recorded; >=: a bound, as only block times were recorded",
    "difference: of the recomputed samples/s from the printed",
    "whole: compute time / running time of all epochs, with no step left out (as in the text of v1.0's rules)",
    "sustained: AU of an endless epoch, at least; credit: share of the counted steps' batches that had been read",
    "before these steps began, at most",
    "losses in % of the time: first: first step of each epoch; load: waits for batches; late: the host woke late;",
    "slower: waits for the slowest rank; barrier: the rest of the blocks' time",
    "",
)


def audit_table(runs: Sequence[AuditedRun]) -> Table:
    top = common_folder(runs)
    last, right = len(_HEADS) - 1, range(2, len(_HEADS) - 1)
    across = columns(*_HEADS, right=right, whole=range(last + 1))
    cells = [_cells(os.path.relpath(run.path, top), audit_row(run)) for run in runs]
    return Table(title=top, columns=across, rows=cells, dense=True)


def common_folder(runs: Sequence[AuditedRun]) -> str:
    return os.path.commonpath([os.path.dirname(os.path.abspath(run.path)) for run in runs])


def _cells(run: str, row: AuditRow) -> list[Cell]:
    recomputed = _number(row.au_recomputed_percent)
    if recomputed == "-" and row.au_least_percent is not None:
        recomputed = f">={_number(row.au_least_percent)}"
    return [
        Line(run, "bad" if row.errors else "plain"),
        f"{row.workload or '?'}, {row.accelerators or '?'} x {row.accelerator or '?'}",
        _number(row.au_printed_percent),
        recomputed,
        _number(row.au_whole_percent),
        "-" if row.au_sustained_least_percent is None else f">={_number(row.au_sustained_least_percent)}",
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
    top = common_folder(runs)
    yield from finding_lines([one for run in runs for one in at(os.path.abspath(run.path), run.findings)], top)
    rows = [audit_row(run) for run in runs]
    wrong, kept = sum(bool(row.errors) for row in rows), sum(row.basis == "steps" for row in rows)
    blocks = sum(row.from_blocks for row in rows)
    yield Line(
        f"{count(len(rows), 'run')}: {kept} recomputed from all steps, {blocks} from block times,"
        f" {len(rows) - kept - blocks} from less; {wrong or 'none'} with errors",
        "bad" if wrong else "good",
    )
