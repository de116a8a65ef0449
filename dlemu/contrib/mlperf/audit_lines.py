"""What `dlemu audit` prints: a table with a row for each run, the findings by rule, and a summary line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, audit_row
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.lines import finding_lines
from dlemu.contrib.mlperf.rules.known import with_path
from dlemu.report.table import Cell, Line, Table, columns
from dlemu.results.wording import count

_AU = ("printed AU %", "recomputed", "whole")
_LOSSES = ("first_step", "load", "oversleep", "slower_rank", "barrier")
_VERDICTS = ("right", "wrong", "not certain")
_HEADS = ("run", "of", *_AU, "first", "load", "late", "slower", "barrier", "samples/s", "difference", "findings")
_LEGEND = (
    "recomputed: from the steps that the ranks recorded; >=: a bound, as only block times were recorded",
    "difference: of the recomputed samples/s from the printed",
    "whole: compute time / running time of all epochs, with no step left out (as in the text of v1.0's rules)",
    "losses in % of the time: first: first step of each epoch; load: waits for batches; late: the host woke late;",
    "slower: waits for the slowest rank; barrier: the rest of the blocks' time",
    "",
)


def audit_table(runs: Sequence[AuditedRun]) -> Table:
    folder = _common_folder(runs)
    heads = columns(*_HEADS, right=range(2, len(_HEADS) - 1), whole=range(len(_HEADS)))
    cells = [_cells(os.path.relpath(run.path, folder), audit_row(run)) for run in runs]
    return Table(title=folder, columns=heads, rows=cells, dense=True)


def _common_folder(runs: Sequence[AuditedRun]) -> str:
    return os.path.commonpath([os.path.dirname(os.path.abspath(run.path)) for run in runs])


def _cells(run: str, row: AuditRow) -> list[Cell]:
    au = _number(row.au_recomputed_percent)
    if row.au_recomputed_percent is None and row.au_least_percent is not None:
        au = f">={_number(row.au_least_percent)}"
    # If no formula fits the printed numbers, compare them with DLIO 2.x's.
    rate = row.samples_per_second_recomputed if row.printed_by else row.samples_per_second_dlio
    difference = "-"
    if rate is not None and row.samples_per_second_printed:
        difference = f"{100 * (rate / row.samples_per_second_printed - 1):+.2f} %"
    return [
        Line(run, "bad" if row.errors else "plain"),
        f"{row.workload or '?'}, {row.accelerators or '?'} x {row.accelerator or '?'}",
        _number(row.au_printed_percent),
        au,
        _number(row.au_whole_percent),
        *(_number(getattr(row, f"loss_{name}_percent")) for name in _LOSSES),
        _number(row.samples_per_second_printed),
        difference,
        ", ".join(count(number, name) for number, name in ((row.errors, "error"), (row.warnings, "warning")) if number),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def audit_lines(runs: Sequence[AuditedRun]) -> Iterator[Cell]:
    """Yield the legend of the columns, the findings, how many printed AUs are right, and a summary line."""
    yield from _LEGEND
    findings = [finding for run in runs for finding in with_path(os.path.abspath(run.path), run.findings)]
    yield from finding_lines(findings, _common_folder(runs))
    rows = [audit_row(run) for run in runs]
    pairs = zip(runs, rows, strict=True)
    verdicts = Counter(_au_verdict(run, row) for run, row in pairs if row.au_printed_percent is not None)
    if verdicts:
        counts = [f"{verdict} in {count(verdicts[verdict], 'run')}" for verdict in _VERDICTS if verdicts[verdict]]
        yield f"printed AU: {', '.join(counts)}"
    wrong = sum(row.errors > 0 for row in rows)
    from_steps = sum(row.basis == "steps" for row in rows)
    # Block times give a rate, or an AU, only if the run's settings are known.
    timed = [row for row in rows if row.basis == "blocks"]
    from_blocks = sum(row.au_whole_percent is not None or row.samples_per_second_dlio_v1 is not None for row in timed)
    yield Line(
        f"{count(len(rows), 'run')}: {from_steps} recomputed from all steps, {from_blocks} from block times,"
        f" {len(rows) - from_steps - from_blocks} from less; {wrong or 'none'} with errors",
        "bad" if wrong else "good",
    )


def _au_verdict(run: AuditedRun, row: AuditRow) -> str:
    """Return which of _VERDICTS a run's printed AU has; only the steps of all ranks, without errors, prove it right."""
    if any(finding.rule == "au.differs" for finding in run.findings):
        return "wrong"
    if row.basis != "steps" or row.au_recomputed_percent is None or row.errors:
        return "not certain"
    return "right"
