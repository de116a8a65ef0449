"""The page of an audit: what was found, system by system and run by run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dlemu.report.audit import Audit, AuditRow, System, again, kind, rate_apart_percent
from dlemu.report.page import Page, Table, Words, tiles
from dlemu.report.units import number

_MOST_ROWS = 1000
_SEVERITIES = ("error", "warning", "info")
_TILES = (
    ("runs", "runs", "", "result folders found"),
    ("systems", "systems", "", "folders of runs"),
    ("with errors", "runs_with_errors", "", "contradict what was printed, can't be read, or break a rule"),
    ("from all steps", "runs_from_steps", "", "recomputed exactly"),
    ("from block times", "runs_from_blocks", "", "recomputed in bounds"),
    ("largest AU difference", "largest_au_difference_points", "", "points, of those from all steps"),
    ("printed success", "passed_printed", "", "runs"),
    ("of these by dropped steps", "passed_only_without_first_steps", "", "would fail by the text of the rules"),
    ("first steps", "median_first_step_loss_percent", "%", "of the time, lost in first steps; median run"),
)
_LOSS = {
    "first steps": "first_step",
    "load": "load",
    "late": "oversleep",
    "slower": "slower_rank",
    "barrier": "barrier",
    "all other": "all_other",
}


def audit_page(audit: Audit) -> Page:
    """Return what stands on the page of an audit."""
    summary, edition = audit.answer["summary"], audit.answer.get("edition")
    wrong = summary["runs_with_errors"]
    rest = f" run{'s' if wrong != 1 else ''} with errors, of {summary['runs']:,}" if wrong else "no run has an error"
    held = f", held against the rules of MLPerf Storage v{edition}, {audit.answer['division']}" if edition else ""
    return Page(
        title=f"Audit of {summary['runs']:,} run{'s' if summary['runs'] != 1 else ''}",
        lead=f"AU and samples/s recomputed from what the runs kept, and compared with what they printed{held}.",
        state="failed" if wrong else "passed",
        verdict=(f"{wrong:,}", rest) if wrong else ("SOUND", f": {rest}"),
        tiles=tiles(summary, _TILES, "summary."),
        words=[_legend(), Words("Findings", points=_findings(audit) or ["none"])],
        tables=list(_tables(audit)),
        texts=[],
        source=os.path.basename(os.path.abspath(audit.folder)),
    )


def _legend() -> Words:
    points = (
        "printed: by the run's own summary. again: recomputed from the steps of the ranks, by the formula that comes "
        "closest; where only block times were kept, >= is a bound. rules: AU by the text of MLPerf Storage's rules, no "
        "step dropped.",
        "Lost time, in percent of all blocks' time. first steps: until the first batch is there. load: later waits for "
        "batches. late: the host woke late. slower: waits for the slowest rank. barrier: the rest, outside of steps. "
        "all other: all but first steps, where no steps were kept.",
        "Formulas, columns and rules: docs/audit.md of dlemu. The table as a file: audit.csv.",
    )
    return Words("How to read this page", points=points)


def _tables(audit: Audit) -> Iterator[Table]:
    systems = audit.systems
    if len(systems) < len(audit.runs):
        head = (
            "system",
            "runs",
            "accelerators",
            "AU printed, %",
            "least",
            "most",
            "AU rules, %",
            "samples/s",
            "errors",
        )
        yield Table("Systems", head, [_system(*one) for one in systems[:_MOST_ROWS]], range(1, 9), dense=True)
    columns = (
        *("run", "accelerators", "hosts", "AU printed, %", "again", "by", "rules", "samples/s printed", "again, %"),
        *_LOSS,
        "findings",
    )
    shown = min(len(audit.runs), _MOST_ROWS)
    title = "Runs" if shown == len(audit.runs) else f"Runs: {shown:,} of {len(audit.runs):,}, those with errors first"
    yield Table(title, columns, list(_run_rows(systems)), (1, 2, 3, 4, *range(6, 9 + len(_LOSS))), dense=True)


def _run_rows(systems: Sequence[System]) -> Iterator[list[str]]:
    """Yield a heading a system and a row a run: of very many runs the systems with errors first, then the others."""
    if sum(len(runs) for _, runs in systems) > _MOST_ROWS:
        systems = sorted(systems, key=lambda one: not any(run["errors"] for run in one[1]))
    left = _MOST_ROWS
    for name, runs in systems:
        if left:
            yield [f"{name} ({kind(runs[0])})"]
            yield from (_run(run) for run in runs[:left])
            left -= min(left, len(runs))


def _findings(audit: Audit) -> list[str]:
    """Return a line for each rule, the gravest first."""
    by_rule: dict[tuple[int, str], list[tuple[AuditRow, dict[str, Any]]]] = {}
    for run in audit.runs:
        for finding in run["findings"]:
            by_rule.setdefault((_SEVERITIES.index(finding["severity"]), finding["rule"]), []).append((run, finding))
    lines = []
    for (severity, rule), found in sorted(by_rule.items()):
        run, first = found[0]
        count = len({one["path"] for one, _ in found})
        where = os.path.normpath(os.path.join(run["system"], run["run"]))
        example = f"{'for example ' if count > 1 else ''}{where}: {first['seen']}"
        head = f"{_SEVERITIES[severity]} {rule}, {count:,} run{'s' if count != 1 else ''}"
        lines.append(f"{head}: {example}. Wanted: {first['wanted']}. To do: {first['fix']}.")
    return lines


def _system(name: str, runs: Sequence[AuditRow]) -> list[str]:
    printed = [run["au_printed_percent"] for run in runs if run["au_printed_percent"] is not None]
    count = {run["accelerators"] for run in runs}
    return [
        name,
        str(len(runs)),
        str(count.pop() or "-") if len(count) == 1 else "several",
        _fixed(_mean(printed)),
        _fixed(min(printed, default=None)),
        _fixed(max(printed, default=None)),
        _fixed(_mean([run["au_rules_percent"] for run in runs if run["au_rules_percent"] is not None])),
        number(_mean([one for run in runs if (one := run["samples_per_second_printed"]) is not None])),
        str(sum(bool(run["errors"]) for run in runs)),
    ]


def _run(run: AuditRow) -> list[str]:
    known, least = again(run, "au"), run["au_least_percent"]
    apart = rate_apart_percent(run)
    return [
        run["run"],
        *(str(run[key] or "-") for key in ("accelerators", "hosts")),
        _fixed(run["au_printed_percent"]),
        f">={least:.2f}" if known is None and least is not None else _fixed(known),
        run["printed_by"] or "-",
        _fixed(run["au_rules_percent"]),
        number(run["samples_per_second_printed"]),
        "-" if apart is None else f"{apart:+.3f}",
        *(_fixed(run[f"loss_{part}_percent"]) for part in _LOSS.values()),
        _told(run["findings"]),
    ]


def _told(findings: Sequence[dict[str, Any]]) -> str:
    """Return the rules of errors and warnings; what is only told for information is in the table of findings."""
    rules = Counter(f"{one['severity']} {one['rule']}" for one in findings if one["severity"] != "info")
    return ", ".join(rule if count == 1 else f"{rule} ({count})" for rule, count in rules.items())


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
