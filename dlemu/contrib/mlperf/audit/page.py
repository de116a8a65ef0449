"""The page of a saved audit: reads audit.json, and makes the tables and texts, by system."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from dlemu.contrib.mlperf.audit.audit_answer import AUDIT, PlacedRun, SavedAudit
from dlemu.extend import UserError
from dlemu.report.page import Opened, Page, Words, tiles
from dlemu.report.table import Table, columns
from dlemu.report.units import number
from dlemu.results.answer_files import read_answer
from dlemu.results.finding import SEVERITIES, Finding
from dlemu.results.wording import count

_MAX_ROWS = 1000  # a page of 660 runs has 0.9 MB (docs/audit.md); browsers open a larger one slowly

System = tuple[str, Sequence[PlacedRun]]
"""Name of a system, and its runs."""


@dataclass(frozen=True)
class Audit:
    """A saved audit, with its runs by system."""

    folder: str
    answer: SavedAudit

    @cached_property
    def runs(self) -> list[PlacedRun]:
        """All runs, sorted by system and name."""
        return sorted(self.answer.runs, key=lambda run: (run.system, run.run))

    @cached_property
    def systems(self) -> list[System]:
        """Runs by system, or by system and workload where a system ran several; names are unique."""
        named: list[System] = []
        for system, group in groupby(self.runs, key=lambda run: run.system):
            runs = list(group)
            kinds = sorted({run.kind for run in runs})
            for kind in kinds:
                name = system if len(kinds) == 1 else f"{system}: {kind}"
                named.append((name, [run for run in runs if run.kind == kind]))
        return named


def open_audit(folder: str) -> Audit:
    """Read a saved audit; raises UserError when it is damaged or of another version."""
    answer = read_answer(folder, AUDIT, SavedAudit)
    if answer is None:
        raise UserError(f"{folder} holds no {AUDIT}: make one with `dlemu audit RESULTS --report {folder}`")
    if not answer.runs:
        fix = f"make it again with `dlemu audit RESULTS --report {folder}`"
        raise UserError(f"{os.path.join(folder, AUDIT)} holds no run: {fix}")
    return Audit(folder, answer)


# The page

_TILES = (
    ("runs", "summary.runs", "", "result folders found"),
    ("systems", "summary.systems", "", "folders with runs"),
    ("with errors", "summary.runs_with_errors", "", "contradict what was printed, can't be read, or break a rule"),
    ("from all steps", "summary.runs_from_steps", "", "recomputed exactly"),
    ("from block times", "summary.runs_from_blocks", "", "recomputed in bounds"),
    ("largest AU difference", "summary.largest_au_difference_points", "", "points, among runs from all steps"),
    ("printed success", "summary.passed_printed", "", "runs"),
    ("of these by dropped steps", "summary.passed_only_without_first_steps", "", "would fail by AU of whole epochs"),
    ("first steps", "summary.median_first_step_loss_percent", "%", "of the time is lost in first steps (median run)"),
)
_LOSS = ("first steps", "load", "late", "slower", "barrier", "all other")
"""Column titles of `RunColumns.loss_percent`."""


def audit_page(audit: Audit) -> Page:
    """Return the page of an audit."""
    answer, summary = audit.answer, audit.answer.summary
    wrong, runs = summary.runs_with_errors, count(summary.runs, "run")
    rest = f" {'run' if wrong == 1 else 'runs'} with errors, of {summary.runs:,}" if wrong else "no run has an error"
    rules = f", checked by the rules of MLPerf Storage v{answer.edition}, {answer.division}" if answer.edition else ""
    return Page(
        title=f"Audit of {runs}",
        lead=f"AU and samples/s recomputed from what the runs kept, and compared with what they printed{rules}.",
        state="failed" if wrong else "passed",
        verdict=(f"{wrong:,}", rest) if wrong else ("SOUND", f": {rest}"),
        tiles=tiles(answer, _TILES),
        words=[_legend(), Words("Findings", _findings(audit) or ["none"])],
        tables=list(_tables(audit)),
        source=os.path.basename(os.path.abspath(audit.folder)),
    )


def _legend() -> Words:
    points = (
        "printed: from the run's own summary. recomputed: from the ranks' steps, by the formula that comes closest; "
        ">= marks a lower bound, where only block times were kept. whole: AU of all epochs together, no step dropped. "
        "sustained: AU that an endless epoch would have. credit: share of the counted steps' batches that was read "
        "before these steps began. Except for dlemu's own runs, both follow from the number of readers: the sustained "
        "AU is a lower bound (>=), the credit an upper one. difference: recomputed against printed samples/s.",
        "Lost time, in percent of the time of all blocks. first steps: until the first batch arrives. load: later "
        "waits for batches. late: the host woke late. slower: waits for the slowest rank. barrier: the rest, outside "
        "of steps. all other: everything but first steps, where no steps were kept.",
        "Formulas, columns and rules: docs/audit.md of dlemu. The table as a file: audit.csv.",
    )
    return Words("How to read this page", points)


def _findings(audit: Audit) -> list[str]:
    """Return one line for each rule, most severe first."""
    by_rule: dict[tuple[int, str], list[tuple[PlacedRun, Finding]]] = {}
    for run in audit.runs:
        for finding in run.findings:
            by_rule.setdefault((SEVERITIES.index(finding.severity), finding.rule), []).append((run, finding))
    lines = []
    for (severity, rule), broken in sorted(by_rule.items(), key=lambda item: item[0]):
        run, first = broken[0]
        runs = len({run.path for run, _ in broken})
        example = f"{'for example ' if runs > 1 else ''}{run.name}: {first.seen}"
        head = f"{SEVERITIES[severity]} {rule}, {count(runs, 'run')}"
        lines.append(f"{head}: {example}. Wanted: {first.wanted}. To do: {first.fix}.")
    return lines


def _tables(audit: Audit) -> Iterator[Table]:
    systems = audit.systems
    if len(systems) < len(audit.runs):
        titles = ["system", "runs", "accelerators", "AU printed, %", "least", "most", "AU whole, %"]
        titles += ["samples/s", "errors"]
        rows = [_system(*system) for system in systems[:_MAX_ROWS]]
        yield Table(title="Systems", columns=columns(*titles, right=range(1, 9)), rows=rows, dense=True)
    titles = ["run", "accelerators", "hosts", "AU printed, %", "recomputed", "by", "whole", "sustained"]
    titles += ["credit, %", "samples/s printed", "difference, %"]
    head = columns(*titles, *_LOSS, "findings", right=(*range(1, 5), *range(6, 11 + len(_LOSS))))
    shown = min(len(audit.runs), _MAX_ROWS)
    title = "Runs" if shown == len(audit.runs) else f"Runs: {shown:,} of {len(audit.runs):,}, those with errors first"
    yield Table(title=title, columns=head, rows=list(_run_rows(systems)), dense=True)


def _system(name: str, runs: Sequence[PlacedRun]) -> list[str]:
    printed = [run.au_printed_percent for run in runs if run.au_printed_percent is not None]
    accelerators = {run.accelerators for run in runs}
    return [
        name,
        str(len(runs)),
        str(accelerators.pop() or "-") if len(accelerators) == 1 else "several",
        _fixed(_mean(printed)),
        _fixed(min(printed, default=None)),
        _fixed(max(printed, default=None)),
        _fixed(_mean([run.au_whole_percent for run in runs])),
        number(_mean([run.samples_per_second_printed for run in runs])),
        str(sum(bool(run.errors) for run in runs)),
    ]


def _run_rows(systems: Sequence[System]) -> Iterator[list[str]]:
    """Yield a heading per system and a row per run. If not all fit, systems with errors come first."""
    if sum(len(runs) for _, runs in systems) > _MAX_ROWS:
        systems = sorted(systems, key=lambda system: not any(run.errors for run in system[1]))
    left = _MAX_ROWS
    for name, runs in systems:
        if left:
            yield [f"{name} ({runs[0].kind})"]
            yield from (_run(run) for run in runs[:left])
            left -= min(left, len(runs))


def _run(run: PlacedRun) -> list[str]:
    recomputed, least, rate_change = run.au_recomputed_percent, run.au_least_percent, run.rate_difference_percent
    sustained, is_least = run.sustained_percent
    return [
        run.run,
        str(run.accelerators or "-"),
        str(run.hosts or "-"),
        _fixed(run.au_printed_percent),
        f">={least:.2f}" if recomputed is None and least is not None else _fixed(recomputed),
        run.printed_by or "-",
        _fixed(run.au_whole_percent),
        ">=" * is_least + _fixed(sustained),
        _fixed(run.prefetch_credit_percent),
        number(run.samples_per_second_printed),
        "-" if rate_change is None else f"{rate_change:+.3f}",
        *map(_fixed, run.loss_percent.values()),
        _rules(run.findings),
    ]


def _rules(findings: Sequence[Finding]) -> str:
    """Return the rules of errors and warnings; infos are only among the findings."""
    rules = Counter(f"{finding.severity} {finding.rule}" for finding in findings if finding.severity != "info")
    return ", ".join(rule if times == 1 else f"{rule} ({times})" for rule, times in rules.items())


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def open_page(folder: str) -> Opened:
    """Return the audit in a folder with its page; raises UserError."""
    audit = open_audit(folder)
    return Opened(audit, audit_page(audit), "dlemu.contrib.mlperf.audit.figures")


def read_audit(folder: str) -> SavedAudit:
    """Return a saved audit; raises UserError when it is damaged or of another version."""
    return open_audit(folder).answer
