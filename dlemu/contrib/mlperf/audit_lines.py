"""What `dlemu audit` prints: one line per run, below its folder; the findings by rule; and a summary line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, Place, audit_row, common_folder, places
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.lines import STYLES, Line, finding_lines
from dlemu.contrib.mlperf.rules.known import Located

_WIDEST = 26  # columns of a run's name: wider, and the table does not fit on a usual terminal


def audit_lines(runs: Sequence[AuditedRun]) -> Iterator[Line]:
    """Yield the lines, with the runs in the order of their paths."""
    top = common_folder([run.path for run in runs])
    rows = [audit_row(run) for run in runs]
    placed = sorted(zip(places([row.path for row in rows]), rows, strict=True), key=_order)
    width = min(_WIDEST, max(len(place.run) for place, _ in placed))
    yield from _head(width)
    for system, group in groupby(placed, key=lambda listed: listed[0].system):
        members = list(group)
        yield f"{system}: {_what([row for _, row in members])}", {"bold": True}
        yield from (_line(place.run, width, row) for place, row in members)
    yield "", {}
    yield from _legend()
    yield from finding_lines([Located(run.path, finding) for run in runs for finding in run.findings], top)
    yield from _sum(rows)


def _order(listed: tuple[Place, AuditRow]) -> tuple[str, str]:
    return listed[0].parent, listed[0].run


def _head(width: int) -> Iterator[Line]:
    for text in (
        f"  {'':{width}} |{'AU in percent':^46}|{'loss in percent of the time':^35}|{'samples/s':^23}|",
        f"  {'run':{width}} |{'printed':>8}{'recomputed':>12}{'whole':>8}{'sustained':>10}{'credit':>7} |"
        f"{'first':>7}{'load':>7}{'late':>6}{'slower':>7}{'barrier':>8}|{'printed':>11}{'difference':>12}| findings",
    ):
        yield text, {"dim": True}


def _what(rows: Sequence[AuditRow]) -> str:
    kinds = {(row.workload, row.accelerator, row.accelerators, row.hosts) for row in rows}
    if len(kinds) > 1:
        return f"{len(rows)} runs of {len(kinds)} kinds"
    workload, accelerator, count, hosts = kinds.pop()
    on = f" on {hosts} host{'s' if hosts != 1 else ''}" if hosts else ""
    return f"{workload or 'workload unknown'}, {count or '?'} x {accelerator or 'accelerator'}{on}"


def _line(label: str, width: int, row: AuditRow) -> Line:
    recomputed = _number(row.au_recomputed_percent)
    if recomputed == "-" and row.au_least_percent is not None:
        recomputed = f">={_number(row.au_least_percent)}"
    percent, is_least = row.sustained_percent
    sustained = ">=" * is_least + _number(percent)
    if row.loss_all_other_percent is not None:
        shares = f"{_number(row.loss_first_step_percent):>7}{'all other ' + _number(row.loss_all_other_percent):>28}"
    else:
        shares = (
            f"{_number(row.loss_first_step_percent):>7}{_number(row.loss_load_percent):>7}"
            f"{_number(row.loss_oversleep_percent):>6}{_number(row.loss_slower_rank_percent):>7}"
            f"{_number(row.loss_barrier_percent):>8}"
        )
    text = (
        f"  {_short(label, width):{width}} |{_number(row.au_printed_percent):>8}{recomputed:>12}"
        f"{_number(row.au_whole_percent):>8}{sustained:>10}{_number(row.prefetch_credit_percent):>7} |{shares}|"
        f"{_number(row.samples_per_second_printed):>11}"
        f"{_rate_difference(row):>12}| {_counts(row)}"
    )
    return text, STYLES["error" if row.errors else "info"]


def _short(label: str, width: int) -> str:
    return label if len(label) <= width else f"...{label[3 - width :]}"


def _rate_difference(row: AuditRow) -> str:
    printed = row.samples_per_second_printed
    recomputed = row.samples_per_second_recomputed if row.printed_by else row.samples_per_second_dlio
    if recomputed is None or not printed:
        return "-"
    return f"{100 * (recomputed / printed - 1):+.2f} %"


def _counts(row: AuditRow) -> str:
    counts = ((row.errors, "error"), (row.warnings, "warning"))
    return ", ".join(f"{count} {kind}{'s' if count != 1 else ''}" for count, kind in counts if count)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _legend() -> Iterator[Line]:
    for text in (
        "recomputed: from the steps that the ranks recorded; >=: a bound, as only block times were recorded;",
        "difference: of the recomputed samples/s from the printed",
        "whole: compute time / running time of all epochs, with no step left out (as in the text of v1.0's rules)",
        "sustained: AU of an endless epoch (for other tools' runs a lower bound); credit: share of the counted",
        "steps' batches that had been read before these steps began (for other tools' runs an upper bound)",
        "first: first step of each epoch; load: waits for batches; late: the host woke late;",
        "slower: waits for the slowest rank; barrier: the rest of the blocks' time, outside of all steps",
    ):
        yield text, {"dim": True}
    yield "", {}


def _sum(rows: Sequence[AuditRow]) -> Iterator[Line]:
    wrong = sum(bool(row.errors) for row in rows)
    kept = sum(row.basis == "steps" for row in rows)
    blocks = sum(row.from_blocks for row in rows)
    style = STYLES["error"] if wrong else {"fg": "green", "bold": True}
    yield (
        f"{len(rows)} run{'s' if len(rows) != 1 else ''}: {kept} recomputed from all steps, {blocks} from block times,"
        f" {len(rows) - kept - blocks} from less; {wrong} with errors",
        style,
    )
