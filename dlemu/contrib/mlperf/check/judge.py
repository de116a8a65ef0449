"""Checks a folder: applies every rule, names the findings as the edition's own checker does, returns data or CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import audit_trees, find_runs
from dlemu.contrib.mlperf.audit.papers import Papers
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.tolerant import mapping, read_json
from dlemu.contrib.mlperf.check.checkpoint_rules import CHECKPOINT_RULES, figures_of, processes_of
from dlemu.contrib.mlperf.check.copy_rules import CHECKPOINT_COPY_RULES, COPY_RULES, copied_runs
from dlemu.contrib.mlperf.check.kv_rules import copied_kv, kv_findings
from dlemu.contrib.mlperf.check.provenance_rules import ORIGIN_RULES, PROVENANCE_RULES
from dlemu.contrib.mlperf.check.result_rules import RESULT_RULES
from dlemu.contrib.mlperf.check.run_records import record_findings, records_of
from dlemu.contrib.mlperf.check.submission_tree import (
    CHECKPOINTING,
    KV_CACHE,
    VECTOR_DATABASE,
    AnyResult,
    CheckpointResult,
    Finder,
    KvResult,
    Result,
    Submission,
    other_editions,
    other_leaves,
    scope_of,
    submissions,
    tree_edition,
)
from dlemu.contrib.mlperf.check.system_description import check_systems
from dlemu.contrib.mlperf.check.time_rules import times
from dlemu.contrib.mlperf.check.tree_rules import (
    FILE_RULES,
    SUBMISSION_RULES,
    call_files,
    linked_folders,
    top_folders,
)
from dlemu.contrib.mlperf.rules.editions import Edition, Reading
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Located, by_rule_at, known_rules, official_name
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError

REHEARSAL, TREE = "rehearsal.json", "tree"
"""What `dlemu mlperf run` writes into its folder: the rehearsal's record, and the tree in the edition's layout."""
_LEFT_TO_SUBMITTER = ("submission.code", "systems.pdf", "systems.unfilled", "tool.other")
"""Rules on what the submitter or mlpstorage adds later: in a rehearsal, their findings are only `info`."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A checked folder: the results in it and all findings."""

    root: str
    reading: Reading
    """How strictly the rules of v3.0 were read."""
    results: tuple[Result, ...]
    submissions: tuple[Submission, ...]
    rehearsal: Mapping[str, Any] | None
    """Content of `rehearsal.json` when `dlemu mlperf run` made the folder, else None."""
    checkpoints: tuple[CheckpointResult, ...] = ()
    """Results of the checkpointing benchmark."""
    others: tuple[KvResult, ...] = ()
    """Results of the kv_cache benchmark."""
    findings: tuple[Located, ...] = field(default=())

    def count(self, severity: str) -> int:
        """Return the number of findings with this severity."""
        return sum(located.finding.severity == severity for located in self.findings)

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.count("error")

    @property
    def unjudged(self) -> int:
        """Number of runs of benchmarks that dlemu has no rules for."""
        return sum(located.finding.rule == "run.other" for located in self.findings)


def check_folder(
    folder: str, edition: str | None = None, division: Division | None = None, reading: Reading = "today"
) -> Checked:
    """Check a folder: a submission tree, an mlpstorage results folder, a single run, or one of `dlemu mlperf run`.

    Edition and division are read from the tree unless given. With the reading `published`, rules that only warned when
    v3.0's round was judged give warnings; with `today`, errors. Whatever is wrong inside the folder becomes a finding.

    Raises:
        UserError: `folder` is not a folder.
    """
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a readable folder: wanted a submission tree, or results of runs")
    # Absolute: the folders above a relative one, such as `.`, tell its division, system and phase.
    rehearsal, root = _read_rehearsal(os.path.abspath(folder))
    audited = audit_trees([root]) if find_runs([root]) else []
    finder = Finder(root, edition, division)
    leaves = other_leaves(root)
    drafts = finder.results(audited)
    checkpoint_drafts = finder.checkpoints(leaves.get(CHECKPOINTING, ()))
    other_drafts = finder.kv_results(leaves.get(KV_CACHE, ()))
    if edition is None and drafts and not leaves and all(map(_is_older, drafts)):
        raise UserError(
            f"{folder} holds runs of MLPerf Storage v1.0 or older: wanted v2.0 or later; `dlemu audit` recomputes "
            "their numbers"
        )
    editions = _tree_editions(root, drafts, [*checkpoint_drafts, *other_drafts], edition, reading)
    results = [replace(draft, edition=editions[_scope(draft, root)]) for draft in drafts]
    checkpoints = [replace(draft, edition=editions[_scope(draft, root)]) for draft in checkpoint_drafts]
    others = [replace(draft, edition=editions[_scope(draft, root)]) for draft in other_drafts]
    organisations = [
        each for tree, of_tree in sorted(editions.items()) for each in submissions(tree, of_tree, division)
    ]
    findings = [*finder.others, *_rehearsal_findings(root, rehearsal), *linked_folders(root)]
    for path in leaves.get(VECTOR_DATABASE, ()):
        findings.append(by_rule_at(path, "run.other", "a run of vector_database: not checked"))
    findings += _result_findings(results, checkpoints, others)
    findings += _submission_findings(editions, organisations, results, checkpoints)
    if not results and not leaves:
        findings.append(by_rule_at(root, "tree.empty", "no run of any benchmark below"))
    if rehearsal is not None:
        findings = [
            replace(one, finding=replace(one.finding, severity="info"))
            if one.finding.rule in _LEFT_TO_SUBMITTER
            else one
            for one in findings
        ]
    return Checked(
        root=root,
        reading=reading,
        results=tuple(results),
        submissions=tuple(organisations),
        rehearsal=rehearsal,
        checkpoints=tuple(checkpoints),
        others=tuple(others),
        findings=tuple(sorted(dict.fromkeys(findings), key=_sort_key)),
    )


def _is_older(result: Result) -> bool:
    """Return whether DLIO of v0.5 or v1.0 wrote the runs: only rank 0 kept its times, in a file without its number."""
    return bool(result.runs) and all("per_epoch_stats.json" in leaf.files for leaf in result.runs)


def _scope(result: AnyResult, root: str) -> str:
    return scope_of(result.path, root, loose=isinstance(result, Result) and not result.phased)


def _tree_editions(
    root: str,
    results: Sequence[Result],
    others: Sequence[CheckpointResult | KvResult],
    edition: str | None,
    reading: Reading,
) -> dict[str, Edition]:
    """Return tree -> edition: for each submission tree below a folder, and for runs outside any submission."""
    leaves: dict[str, list[Papers]] = {}
    phased: set[str] = set()
    for result in (*results, *others):
        scope = _scope(result, root)
        leaves.setdefault(scope, []).extend(result.leaves)
        phased |= {scope} if not isinstance(result, Result) or result.phased else set()
    scopes = sorted({*leaves, *phased})
    return {each: tree_edition(leaves.get(each, ()), reading, named=edition, phased=each in phased) for each in scopes}


def _read_rehearsal(folder: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return a rehearsal's record and the root of its tree, or the folder in its tree; None with any other folder."""
    if os.path.isfile(path := os.path.join(folder, REHEARSAL)):
        return mapping(read_json(path, [])), os.path.join(folder, TREE)
    place = folder
    while (above := os.path.dirname(place)) != place:
        if os.path.basename(place) == TREE and os.path.isfile(path := os.path.join(above, REHEARSAL)):
            return mapping(read_json(path, [])), folder
        place = above
    return None, folder


def _rehearsal_findings(root: str, rehearsal: Mapping[str, Any] | None) -> Iterator[Located]:
    if rehearsal is None:
        return
    yield by_rule_at(root, "rehearsal", "a rehearsal by dlemu: neither mlpstorage nor DLIO ran")


def _result_findings(
    results: Sequence[Result], checkpoints: Sequence[CheckpointResult], others: Sequence[KvResult]
) -> Iterator[Located]:
    """Yield what each result breaks, and which results have numbers of others."""
    every: list[AnyResult] = [*results, *checkpoints, *others]
    for each in every:
        yield from _as_judged(_findings_of(each), each)
    yield from copied_runs(results, checkpoints)
    yield from copied_kv(others)


def _findings_of(result: AnyResult) -> Iterator[Located]:
    """Yield what a result breaks of the rules of its benchmark, and of those on the records of any call."""
    match result:
        case Result():
            rules: Iterable[Any] = (*RESULT_RULES, *COPY_RULES, *FILE_RULES)
        case CheckpointResult():
            rules = (*CHECKPOINT_RULES, *CHECKPOINT_COPY_RULES)
        case KvResult():
            rules = (kv_findings,)
    for rule in rules:
        yield from rule(result)
    yield from (Located(leaf.path, finding) for leaf in result.leaves for finding in leaf.broken)
    calls = records_of(result)
    for call in calls:
        yield from record_findings(call)
        yield from (Located(call.path, finding) for finding in call_files(call))
    for calls_rule in (times, *PROVENANCE_RULES) if calls else ():
        yield from calls_rule(calls)
    yield from other_editions(result.leaves, result.edition)


def _submission_findings(
    editions: Mapping[str, Edition],
    organisations: Sequence[Submission],
    results: Sequence[Result],
    checkpoints: Sequence[CheckpointResult],
) -> Iterator[Located]:
    """Yield what the submissions break: the rules on submissions apply whatever benchmarks they hold."""
    every: list[Result | CheckpointResult] = [*results, *checkpoints]
    calls = [leaf for result in every for leaf in result.leaves]
    for each in organisations:
        for rule in (*SUBMISSION_RULES, *ORIGIN_RULES):
            yield from _as_judged(rule(each), each)
        yield from _as_judged(check_systems(each, calls), each)
    for tree in editions:
        mine = [each for each in organisations if os.path.dirname(os.path.dirname(each.path)) == tree]
        if mine:
            yield from _as_judged(top_folders(tree), mine[0])


def _as_judged(findings: Iterable[Located], subject: AnyResult | Submission) -> Iterator[Located]:
    """Add the edition's own name of each rule, and apply the table of rules: its editions, and its severity in each."""
    edition = subject.edition
    for located in findings:
        finding, rule = located.finding, known_rules()[located.finding.rule]
        if edition.name not in rule.editions:
            continue
        if finding.severity == "error" and rule.warned & {edition.name, edition.reading}:
            finding = replace(finding, severity="warning")
        yield replace(located, finding=finding, official=official_name(finding.rule, edition.name, subject.division))


def _sort_key(located: Located) -> tuple[int, str, str]:
    return SEVERITIES.index(located.finding.severity), located.finding.rule, located.path


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """One finding as a row of a table."""

    severity: str
    rule: str
    official: str
    """Empty where the edition's checker has no such rule."""
    path: str
    """Relative to the root."""
    seen: str
    wanted: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """A result of any benchmark, of training described by its first run; None for what is unknown."""

    path: str
    edition: str
    division: str
    benchmark: str
    model: str | None = None
    """Workload, or model."""
    accelerator: str | None = None
    processes: int | None = None
    """Accelerators of training, processes of checkpoints."""
    runs: tuple[str, ...]
    rates: Mapping[str, float] = field(default_factory=dict)
    """`save_gib_per_second` and `load_gib_per_second` of checkpoints, as published: rank 0's means."""
    figures: tuple[str, ...] = ()
    """One line per option of kv_cache: its figures as published and as recomputed."""


def check_report(checked: Checked) -> dict[str, Any]:
    """Return the check as plain data, for `--json`."""
    return {
        "root": checked.root,
        "valid": checked.valid,
        "rehearsal": checked.rehearsal is not None,
        "errors": checked.count("error"),
        "warnings": checked.count("warning"),
        "results": list(map(asdict, result_rows(checked))),
        "findings": list(map(asdict, finding_rows(checked))),
        "rules": checked.reading,
    }


def finding_rows(checked: Checked) -> list[FindingRow]:
    """Return the findings as rows of a table."""
    return [
        FindingRow(**vars(one.finding), official=one.official or "", path=os.path.relpath(one.path, checked.root))
        for one in checked.findings
    ]


def result_rows(checked: Checked) -> Iterator[ResultRow]:
    """Yield the results as rows of a table."""
    every: list[AnyResult] = [*checked.results, *checked.checkpoints, *checked.others]
    for result in every:
        common: dict[str, Any] = {
            "path": os.path.relpath(result.path, checked.root),
            "edition": result.edition.name,
            "division": result.division,
            "runs": tuple(leaf.name for leaf in result.runs),
        }
        match result:
            case CheckpointResult():
                yield ResultRow(
                    **common,
                    benchmark=CHECKPOINTING,
                    model=result.model.name if result.model else None,
                    processes=processes_of(result),
                    rates={f"{kind}_gib_per_second": rate for kind, rate in figures_of(result).items()},
                )
            case KvResult():  # its figures come from its `info` findings, here sorted by run and option
                figures = sorted(
                    (located.path, located.finding.seen)
                    for located in checked.findings
                    if located.finding.rule in _FIGURE_RULES and located.path.startswith(result.path + os.sep)
                )
                seen = tuple(seen for _, seen in figures)
                yield ResultRow(**common, benchmark=KV_CACHE, model=result.model, figures=seen)
            case Result():
                first = next((leaf for leaf in result.runs if leaf.run), None)
                setup, printed = (first.setup, first.printed) if first else (Setup(), Printed())
                common |= {"model": setup.workload, "accelerator": setup.accelerator}
                yield ResultRow(**common, benchmark="training", processes=printed.accelerators)


_FIGURE_RULES = ("kv.window", "kv.listed")
