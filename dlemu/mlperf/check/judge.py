"""From a folder to all findings, named as the edition's own checker names them; as plain data and as CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from datagen.errors import UserError
from dlemu.mlperf.audit.audited_run import audit_trees, find_runs
from dlemu.mlperf.audit.tolerant import mapping, read_json, text
from dlemu.mlperf.check.checkpoint_rules import (
    CheckpointResult,
    checkpoint_results,
    figures_of,
    judge_checkpoints,
    processes_of,
)
from dlemu.mlperf.check.copy_rules import COPY_RULES, copied_runs
from dlemu.mlperf.check.other_leaves import CHECKPOINTING, listed_others, other_leaves
from dlemu.mlperf.check.provenance_rules import PROVENANCE_RULES, manifest
from dlemu.mlperf.check.result_rules import RESULT_RULES
from dlemu.mlperf.check.submission_tree import Finder, Result, Submission
from dlemu.mlperf.check.system_description import check_systems
from dlemu.mlperf.check.tree_rules import FILE_RULES, SUBMISSION_RULES, top_folders
from dlemu.mlperf.known_rules import official_name
from dlemu.mlperf.rules import Division
from dlemu.results.finding import SEVERITIES, Finding, Located

REHEARSAL, TREE = "rehearsal.json", "tree"
"""What `dlemu mlperf run` leaves in its folder: its record, and the edition's tree."""
_LEFT_TO_DO = ("submission.code", "systems.pdf", "systems.unfilled", "tool.other")
"""What a submitter adds by hand, or mlpstorage: in a rehearsal it is not missing yet."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A folder and all that was found."""

    root: str
    results: tuple[Result, ...]
    submissions: tuple[Submission, ...]
    rehearsal: Mapping[str, Any] | None
    """`rehearsal.json` of `dlemu mlperf run`, when the folder is of one."""
    checkpoints: tuple[CheckpointResult, ...] = ()
    """Results of checkpointing."""
    findings: tuple[Located, ...] = field(default=())

    def count(self, severity: str) -> int:
        """Return how many findings there are of a severity."""
        return sum(located.finding.severity == severity for located in self.findings)

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.count("error")

    @property
    def unjudged(self) -> int:
        """How many runs are of benchmarks whose rules are not judged."""
        return sum(located.finding.rule == "run.other" for located in self.findings)


def check_folder(folder: str, edition: str | None = None, division: Division | None = None) -> Checked:
    """Return what a folder holds and breaks; edition and division are read off the tree unless they are given.

    The folder is a submission tree, a results folder of mlpstorage, a single run, or one of `dlemu mlperf run`. Raises
    UserError when it is no folder; whatever is wrong inside is a finding.
    """
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is no folder that can be read: wanted a submission tree, or results of runs")
    rehearsal, root = _rehearsal(os.path.normpath(folder))
    audited = audit_trees([root]) if find_runs([root]) else []
    finder = Finder(root, edition, division)
    results = finder.results(audited)
    submissions = finder.submissions(results)
    others = other_leaves(root)
    findings = [*finder.findings, *_of_rehearsal(root, rehearsal), *_applied(root, results, submissions)]
    checkpoints = checkpoint_results([leaf for leaf in others if leaf.category == CHECKPOINTING], edition, division)
    findings += [*listed_others(others), *judge_checkpoints(checkpoints)]
    if not results and not others:
        fix = "give the folder above the runs, or `dlemu audit` for other results"
        seen = "no run of training below"
        findings.append(
            Located(root, Finding("error", "tree.empty", seen, "runs as mlpstorage or DLIO leave them", fix))
        )
    if rehearsal is not None:
        findings = [_postponed(located) for located in findings]
    return Checked(
        root=root,
        results=tuple(results),
        submissions=tuple(submissions),
        rehearsal=rehearsal,
        checkpoints=tuple(checkpoints),
        findings=tuple(sorted(dict.fromkeys(findings), key=_place)),
    )


def _rehearsal(folder: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the record of the rehearsal that a folder is of, and the root of its tree."""
    for place in (folder, os.path.dirname(folder)):
        path = os.path.join(place, REHEARSAL)
        if os.path.isfile(path) and (place == folder or os.path.basename(folder) == TREE):
            return mapping(read_json(path, [])), os.path.join(place, TREE)
    return None, folder


def _of_rehearsal(root: str, rehearsal: Mapping[str, Any] | None) -> Iterator[Located]:
    if rehearsal is None:
        return
    seen = "a rehearsal by dlemu: neither mlpstorage nor DLIO ran"
    fix = "repeat it with mlpstorage for a submission"
    yield Located(root, Finding("info", "rehearsal", seen, "for CLOSED, mlpstorage and DLIO unchanged", fix))
    attempts = rehearsal.get("attempts")
    for attempt in map(mapping, attempts if isinstance(attempts, list) else []):
        failure = text(attempt.get("failure"))
        if failure is not None:
            seen = f"{attempt.get('label')} failed ({attempt.get('folder')}): {failure.splitlines()[0][:200]}"
            wanted = "runs that follow one another, none of them failed"
            fix = "rehearse again in a new folder for five runs in a row"
            yield Located(root, Finding("warning", "runs.failed", seen, wanted, fix))


def _applied(root: str, results: list[Result], submissions: list[Submission]) -> Iterator[Located]:
    for result in results:
        for rule in (*RESULT_RULES, *COPY_RULES, *FILE_RULES, *PROVENANCE_RULES):
            yield from _named(rule(result), result)
    yield from copied_runs(results)
    for each in submissions:
        for upper_rule in (*SUBMISSION_RULES, manifest):
            yield from _named(upper_rule(each), each)
        yield from _named(check_systems(each, results), each)
    if submissions:
        yield from _named(top_folders(root, submissions), submissions[0])


def _named(findings: Iterable[Located], of: Result | Submission) -> Iterator[Located]:
    """Give findings the names that their edition's checker has for the rules."""
    for located in findings:
        yield replace(located, official=official_name(located.finding.rule, of.edition.name, of.division))


def _postponed(located: Located) -> Located:
    if located.finding.rule not in _LEFT_TO_DO:
        return located
    return replace(located, finding=replace(located.finding, severity="info"))


def _place(located: Located) -> tuple[int, str, str]:
    return SEVERITIES.index(located.finding.severity), located.finding.rule, located.path


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """A finding as a line of a table."""

    severity: str
    rule: str
    official: str
    """Empty where the edition's checker has no such rule."""
    path: str
    """Below the root."""
    seen: str
    wanted: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """What a result is of, by its first run; None for what is not known."""

    path: str
    edition: str
    division: str
    workload: str | None
    accelerator: str | None
    accelerators: int | None
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """A result of checkpointing; None for what is not known."""

    path: str
    edition: str
    division: str
    model: str | None
    processes: int | None
    calls: tuple[str, ...]
    save_gib_per_second: float | None
    """As published: the mean of rank 0's rates; so `load_gib_per_second`."""
    load_gib_per_second: float | None


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """A check for programs."""

    root: str
    valid: bool
    rehearsal: bool
    errors: int
    warnings: int
    results: tuple[ResultRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    findings: tuple[FindingRow, ...]


def check_report(checked: Checked) -> CheckReport:
    """Return the check for programs."""
    return CheckReport(
        root=checked.root,
        valid=checked.valid,
        rehearsal=checked.rehearsal is not None,
        errors=checked.count("error"),
        warnings=checked.count("warning"),
        results=tuple(_result_row(result, checked.root) for result in checked.results),
        checkpoints=tuple(_checkpoint_row(result, checked.root) for result in checked.checkpoints),
        findings=tuple(_finding_row(located, checked.root) for located in checked.findings),
    )


def as_csv(checked: Checked) -> str:
    """Return all findings, a line each, below one of names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in fields(FindingRow)])
    writer.writeheader()
    writer.writerows(asdict(_finding_row(located, checked.root)) for located in checked.findings)
    return text.getvalue()


def _finding_row(located: Located, root: str) -> FindingRow:
    finding = located.finding
    return FindingRow(
        severity=finding.severity,
        rule=finding.rule,
        official=located.official or "",
        path=os.path.relpath(located.path, root),
        seen=finding.seen,
        wanted=finding.wanted,
        fix=finding.fix,
    )


def _result_row(result: Result, root: str) -> ResultRow:
    first = next((leaf for leaf in result.runs if leaf.run), None)
    return ResultRow(
        path=os.path.relpath(result.path, root),
        edition=result.edition.name,
        division=result.division,
        workload=first.setup.workload if first else None,
        accelerator=first.setup.accelerator if first else None,
        accelerators=first.printed.accelerators if first else None,
        runs=tuple(leaf.name for leaf in result.runs),
    )


def _checkpoint_row(result: CheckpointResult, root: str) -> CheckpointRow:
    figures = figures_of(result)
    return CheckpointRow(
        path=os.path.relpath(result.path, root),
        edition=result.edition.name,
        division=result.division,
        model=result.model.name if result.model else None,
        processes=processes_of(result),
        calls=tuple(leaf.name for leaf in result.leaves),
        save_gib_per_second=figures.get("save"),
        load_gib_per_second=figures.get("load"),
    )
