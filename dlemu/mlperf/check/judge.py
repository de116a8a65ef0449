"""From a folder to all findings, named as the edition's own checker names them; as plain data and as CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from datagen.errors import UserError
from dlemu.mlperf.audit.audited_run import audit_trees, find_runs
from dlemu.mlperf.audit.tolerant import mapping, read_json, text
from dlemu.mlperf.check.checkpoint_result import CheckpointResult
from dlemu.mlperf.check.checkpoint_rules import CHECKPOINT_RULES, checkpoint_results, figures_of, processes_of
from dlemu.mlperf.check.copy_rules import CHECKPOINT_COPY_RULES, COPY_RULES, copied_runs
from dlemu.mlperf.check.other_leaves import OtherResult, other_leaves, other_results
from dlemu.mlperf.check.other_rules import copied_others, other_findings
from dlemu.mlperf.check.papers import judged, papers_of
from dlemu.mlperf.check.provenance_rules import ORIGIN_RULES, PROVENANCE_RULES
from dlemu.mlperf.check.result_rules import RESULT_RULES
from dlemu.mlperf.check.submission_tree import CHECKPOINTING, Finder, Result, Submission, submissions
from dlemu.mlperf.check.system_description import check_systems, ran_on
from dlemu.mlperf.check.time_rules import times
from dlemu.mlperf.check.tree_edition import Voter, other_editions, scope_of, tree_edition
from dlemu.mlperf.check.tree_rules import FILE_RULES, SUBMISSION_RULES, top_folders
from dlemu.mlperf.rules.editions import Edition, Reading
from dlemu.mlperf.rules.known import official_name, severity_published
from dlemu.mlperf.rules.training import Division
from dlemu.results.finding import SEVERITIES, Finding, Located

REHEARSAL, TREE = "rehearsal.json", "tree"
"""What `dlemu mlperf run` leaves in its folder: its record, and the edition's tree."""
_LEFT_TO_DO = ("submission.code", "systems.pdf", "systems.unfilled", "tool.other")
"""What a submitter adds by hand, or mlpstorage: in a rehearsal it is not missing yet."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A folder and all that was found."""

    root: str
    reading: Reading
    """How strictly the rules of v3.0 were read."""
    results: tuple[Result, ...]
    submissions: tuple[Submission, ...]
    rehearsal: Mapping[str, Any] | None
    """`rehearsal.json` of `dlemu mlperf run`, when the folder is of one."""
    checkpoints: tuple[CheckpointResult, ...] = ()
    """Results of checkpointing."""
    others: tuple[OtherResult, ...] = ()
    """Results of kv_cache and vector_database."""
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


def check_folder(
    folder: str, edition: str | None = None, division: Division | None = None, reading: Reading = "today"
) -> Checked:
    """Return what a folder holds and breaks; edition and division are read off the tree unless they are given.

    `reading` says how grave what an edition's round let pass is: as then, or as its tool has it today.

    The folder is a submission tree, a results folder of mlpstorage, a single run, or one of `dlemu mlperf run`. Raises
    UserError when it is no folder; whatever is wrong inside is a finding.
    """
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a readable folder: wanted a submission tree, or results of runs")
    rehearsal, root = _rehearsal(os.path.normpath(folder))
    audited = audit_trees([root]) if find_runs([root]) else []
    finder = Finder(root, edition, division)
    leaves = other_leaves(root)
    drafts = finder.results(audited)
    calls = checkpoint_results([leaf for leaf in leaves if leaf.category == CHECKPOINTING], edition, division)
    rest = other_results(leaves, edition, division)
    trees = _trees(root, drafts, [*calls, *rest], edition, reading)
    results = [replace(draft, edition=trees[_scope(draft, root)]) for draft in drafts]
    checkpoints = [replace(call, edition=trees[_scope(call, root)]) for call in calls]
    others = [replace(one, edition=trees[_scope(one, root)]) for one in rest]
    organisations = [one for tree, of in sorted(trees.items()) for one in submissions(tree, of, division)]
    findings = [*finder.findings, *_of_rehearsal(root, rehearsal)]
    findings += _of_results(results, checkpoints, others)
    findings += _of_submissions(trees, organisations, results, checkpoints)
    if not results and not leaves:
        fix = "name the folder above the runs, or use `dlemu audit` for other results"
        seen = "no run of any benchmark below"
        findings.append(
            Located(root, Finding("error", "tree.empty", seen, "runs as mlpstorage or DLIO leave them", fix))
        )
    if rehearsal is not None:
        findings = [_postponed(located) for located in findings]
    return Checked(
        root=root,
        reading=reading,
        results=tuple(results),
        submissions=tuple(organisations),
        rehearsal=rehearsal,
        checkpoints=tuple(checkpoints),
        others=tuple(others),
        findings=tuple(sorted(dict.fromkeys(findings), key=_place)),
    )


AnyResult = Result | CheckpointResult | OtherResult
"""Of any benchmark."""


def _scope(result: AnyResult, root: str) -> str:
    return scope_of(result.path, root, loose=isinstance(result, Result) and not result.phased)


def _trees(
    root: str,
    results: Sequence[Result],
    others: Sequence[CheckpointResult | OtherResult],
    edition: str | None,
    reading: Reading,
) -> dict[str, Edition]:
    """Return the edition of each tree below a folder: of each submission, and of runs that are in none."""
    leaves: dict[str, list[Voter]] = {}
    phased: set[str] = set()
    for result in results:
        scope = _scope(result, root)
        leaves.setdefault(scope, []).extend([*result.runs, *result.datagen, *result.datasize])
        phased |= {scope} if result.phased else set()
    for group in others:
        leaves.setdefault(_scope(group, root), []).extend(group.leaves)
        phased.add(_scope(group, root))
    scopes = sorted({*leaves, *phased})
    return {
        scope: tree_edition(leaves.get(scope, ()), reading, named=edition, phased=scope in phased) for scope in scopes
    }


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
            fix = "rehearse again in a new folder to get five runs in a row"
            yield Located(root, Finding("warning", "runs.failed", seen, wanted, fix))


def _of_results(
    results: Sequence[Result], checkpoints: Sequence[CheckpointResult], others: Sequence[OtherResult]
) -> Iterator[Located]:
    """Yield what each result breaks: by its benchmark's rules, and by those on the papers of any call."""
    for result in results:
        for rule in (*RESULT_RULES, *COPY_RULES, *FILE_RULES):
            yield from _named(rule(result), result)
    for group in checkpoints:
        for call_rule in (*CHECKPOINT_RULES, *CHECKPOINT_COPY_RULES):
            yield from _named((Located(path, finding) for path, finding in call_rule(group)), group)
    for other in others:
        yield from _named(other_findings(other), other)
    every: list[AnyResult] = [*results, *checkpoints, *others]
    for each in every:
        papers = papers_of(each)
        for one in papers:
            yield from _named(judged(one), each)
        for group_rule in (times, *PROVENANCE_RULES) if papers else ():
            yield from _named(group_rule(papers), each)
        leaves = (*each.runs, *each.datagen, *each.datasize) if isinstance(each, Result) else each.leaves
        differing = other_editions(leaves, each.edition)
        yield from _named((Located(path, finding) for path, finding in differing), each)
    yield from copied_runs(results, checkpoints)
    yield from copied_others(others)


def _of_submissions(
    trees: Mapping[str, Edition],
    organisations: Sequence[Submission],
    results: Sequence[Result],
    checkpoints: Sequence[CheckpointResult],
) -> Iterator[Located]:
    """Yield what the submissions break: whatever benchmarks they hold, all rules on submissions apply."""
    for each in organisations:
        for rule in (*SUBMISSION_RULES, *ORIGIN_RULES):
            yield from _named(rule(each), each)
        yield from _named(check_systems(each, ran_on(results, checkpoints)), each)
    for tree in trees:
        mine = [each for each in organisations if os.path.dirname(os.path.dirname(each.path)) == tree]
        if mine:
            yield from _named(top_folders(tree, mine), mine[0])


def _named(findings: Iterable[Located], of: AnyResult | Submission) -> Iterator[Located]:
    """Give findings the names that their edition's checker has for the rules, and what they count in this reading."""
    for located in findings:
        finding = located.finding
        if of.edition.reading == "published" and finding.severity == "error":
            finding = replace(finding, severity=severity_published(finding.rule))
        named = official_name(finding.rule, of.edition.name, of.division)
        yield replace(located, finding=finding, official=named)


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
class OtherRow:
    """A result of kv_cache or vector_database; None for what is not known."""

    path: str
    edition: str
    division: str
    category: str
    model: str
    """Or the index."""
    runs: tuple[str, ...]
    figures: tuple[str, ...]
    """A line an option of kv_cache, or a run of vector_database: as published, and as recomputed."""


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
    others: tuple[OtherRow, ...]
    findings: tuple[FindingRow, ...]
    rules: str
    """The reading: `published` or `today`."""


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
        others=tuple(_other_row(result, checked) for result in checked.others),
        findings=tuple(_finding_row(located, checked.root) for located in checked.findings),
        rules=checked.reading,
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


def _other_row(result: OtherResult, checked: Checked) -> OtherRow:
    """A result's row; its figures are in its findings, which are sorted by severity: here by run and option."""
    figures = sorted(
        (located.path, located.finding.seen)
        for located in checked.findings
        if located.finding.rule in _FIGURES and located.path.startswith(result.path + os.sep)
    )
    return OtherRow(
        path=os.path.relpath(result.path, checked.root),
        edition=result.edition.name,
        division=result.division,
        category=result.category,
        model=result.model,
        runs=tuple(os.path.basename(leaf.path) for leaf in result.phase("run")),
        figures=tuple(seen for _, seen in figures),
    )


_FIGURES = ("kv.window", "kv.listed", "vdb.listed")
