"""Checks a folder: applies all rules to the results in it, and returns the findings as an object, rows or a report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlemu.contrib.mlperf.audit.tolerant import mapping, read_json
from dlemu.contrib.mlperf.check import submission_tree
from dlemu.contrib.mlperf.check.checkpoint_rules import CHECKPOINT_RULES, figures_of, model_of
from dlemu.contrib.mlperf.check.copy_rules import CHECKPOINT_COPY_RULES, COPY_RULES, copied_runs
from dlemu.contrib.mlperf.check.kv_rules import copied_kv, kv_findings
from dlemu.contrib.mlperf.check.provenance_rules import CODE_RULES, PROVENANCE_RULES, changed_images, manifest
from dlemu.contrib.mlperf.check.record_rules import RECORD_RULES
from dlemu.contrib.mlperf.check.result_rules import RESULT_RULES
from dlemu.contrib.mlperf.check.submission_tree import CHECKPOINTING, KV_CACHE, REHEARSAL, TRAINING, Result, Submission
from dlemu.contrib.mlperf.check.system_description import check_systems
from dlemu.contrib.mlperf.check.time_rules import TIME_RULES
from dlemu.contrib.mlperf.check.tree_rules import FILE_RULES, SUBMISSION_RULES, call_files, linked_folders, top_folders
from dlemu.contrib.mlperf.rules.editions import Reading
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Finding, by_rule_at, known_rules, official_name, with_path
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError

TREE = "tree"  # subfolder in which `dlemu mlperf run` writes the tree in the edition's layout, beside REHEARSAL
_ADDED_LATER = ("submission.code", "systems.pdf", "systems.unfilled", "tool.other")
"""Rules on what the submitter or mlpstorage adds later: for a rehearsal, their findings are `info`."""
_RULES: Mapping[str, submission_tree.Rules[Any]] = {
    TRAINING: (*RESULT_RULES, *COPY_RULES, *FILE_RULES),
    CHECKPOINTING: (*CHECKPOINT_RULES, *CHECKPOINT_COPY_RULES),
    KV_CACHE: (kv_findings,),
}
"""Benchmark -> the rules on its results."""
_COMMON_RULES = (*TIME_RULES, *PROVENANCE_RULES, submission_tree.other_editions)  # on results of every benchmark


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A checked folder: the results in it and all findings."""

    root: str
    reading: Reading
    """How strictly the rules of v3.0 were read."""
    results: tuple[Result[Any], ...] = ()
    submissions: tuple[Submission, ...] = ()
    rehearsal: Mapping[str, Any] | None = None
    """Content of `rehearsal.json`; None for a folder that is no rehearsal."""
    findings: tuple[Finding, ...] = ()

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def valid(self) -> bool:
        return not self.count("error")

    @property
    def unjudged(self) -> int:
        """Number of runs of benchmarks for which dlemu has no rules."""
        return sum(finding.rule == "run.other" for finding in self.findings)


def check_folder(
    folder: str, edition: str | None = None, division: Division | None = None, reading: Reading = "today"
) -> Checked:
    """Check a folder: a submission tree, an mlpstorage results folder, a single run, or one of `dlemu mlperf run`.

    Edition and division are read from the tree unless given. Some rules only warned when v3.0's round was judged: with
    the reading `published` they give warnings, with `today` errors. Anything wrong inside the folder becomes a finding.
    Raises UserError if `folder` is not a folder, or if all runs in it are of v1.0 or older and no edition is given.
    """
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a readable folder: wanted a submission tree, or results of runs")
    # Absolute, as parent folders name the division, the system and the phase of a relative folder such as `.`.
    rehearsal, root = _read_rehearsal(os.path.abspath(folder))
    contents = submission_tree.find_results(root, edition, division, reading)
    by_result = [["per_epoch_stats.json" in run.files for run in result.runs] for result in contents.results]
    if edition is None and by_result and all(each and all(each) for each in by_result):  # DLIO of v1.0: rank 0's alone
        raise UserError(
            f"{folder} holds runs of MLPerf Storage v1.0 or older: wanted v2.0 or later; `dlemu audit` recomputes "
            "their numbers"
        )
    submissions: list[Submission] = []
    for tree, tree_edition in contents.editions.items():
        submissions += submission_tree.submissions(tree, tree_edition, division)
    findings = [*contents.findings, *linked_folders(root)]
    findings += [*copied_runs(contents.results), *copied_kv(contents.results)]
    for result in contents.results:
        findings += _as_judged(_result_findings(result), result)
    findings += _submission_findings(contents, submissions)
    if rehearsal is not None:
        findings.append(by_rule_at(root, "rehearsal", "a rehearsal by dlemu: neither mlpstorage nor DLIO ran"))
        findings = [replace(each, severity="info") if each.rule in _ADDED_LATER else each for each in findings]
    unique = dict.fromkeys(findings)
    return Checked(
        root=root,
        reading=reading,
        results=contents.results,
        submissions=tuple(submissions),
        rehearsal=rehearsal,
        findings=tuple(sorted(unique, key=lambda each: (SEVERITIES.index(each.severity), each.rule, each.path))),
    )


def _read_rehearsal(folder: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return a rehearsal's record, if any, and the folder to check: its tree, or `folder` if that is in the tree."""
    if os.path.isfile(os.path.join(folder, REHEARSAL)):
        return mapping(read_json(os.path.join(folder, REHEARSAL), [])), os.path.join(folder, TREE)
    for tree in (Path(folder), *Path(folder).parents):
        record = str(tree.parent / REHEARSAL)
        if tree.name == TREE and os.path.isfile(record):
            return mapping(read_json(record, [])), folder
    return None, folder


def _result_findings(result: Result[Any]) -> Iterator[Finding]:
    """Apply the rules on results of this benchmark and of every benchmark, and the rules on single calls."""
    for rule in (*_RULES[result.benchmark], *_COMMON_RULES):
        yield from rule(result)
    for call in result.calls:
        yield from with_path(call.path, call.broken)
        for call_rule in (*RECORD_RULES, *CODE_RULES, call_files):
            yield from with_path(call.path, call_rule(call, result))


def _submission_findings(contents: submission_tree.Contents, submissions: Iterable[Submission]) -> Iterator[Finding]:
    """Apply the rules on submissions, of whatever benchmarks, and on the top folders of their trees."""
    calls = [call for result in contents.results if result.benchmark != KV_CACHE for call in result.calls]
    first_of_tree: dict[str, Submission] = {}
    hashed: set[str] = set()  # images of the code: submissions share those in code-images, and each is hashed once
    for submission in submissions:
        for rule in (*SUBMISSION_RULES, manifest):
            yield from _as_judged(rule(submission), submission)
        yield from _as_judged(changed_images(submission, hashed), submission)
        yield from _as_judged(check_systems(submission, calls), submission)
        first_of_tree.setdefault(str(Path(submission.path).parents[1]), submission)  # the folder above DIVISION/ORG
    for tree in first_of_tree.keys() & contents.editions.keys():  # trees checked as a whole, not by division or ORG
        yield from _as_judged(top_folders(tree), first_of_tree[tree])


def _as_judged(findings: Iterable[Finding], subject: Result[Any] | Submission) -> Iterator[Finding]:
    """Yield the findings of rules that the edition has, with its severity and its official name of the rule."""
    edition = subject.edition
    for finding in findings:
        rule = known_rules()[finding.rule]
        if edition.name not in rule.editions:
            continue
        if finding.severity == "error" and rule.warned & {edition.name, edition.reading}:
            finding = replace(finding, severity="warning")
        yield replace(finding, official=official_name(finding.rule, edition.name, subject.division))


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """A result of any benchmark; one of training is described by its first run. Unknown values are None."""

    path: str
    edition: str
    division: str
    benchmark: str
    model: str | None = None
    """Workload, or model."""
    accelerator: str | None = None
    processes: int | None = None
    """Number of accelerators in training, of processes in checkpointing."""
    runs: tuple[str, ...]
    rates: Mapping[str, float] = field(default_factory=dict)
    """`save_gib_per_second` and `load_gib_per_second` of checkpointing as published, which are rank 0's means."""


def check_report(checked: Checked) -> dict[str, Any]:
    """Return the results and findings of a check, for `--json`."""
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


def finding_rows(checked: Checked) -> list[Finding]:
    """Return the findings with paths relative to the root."""
    return [replace(finding, path=os.path.relpath(finding.path, checked.root)) for finding in checked.findings]


def result_rows(checked: Checked) -> Iterator[ResultRow]:
    for result in checked.results:
        row = ResultRow(
            path=os.path.relpath(result.path, checked.root),
            edition=result.edition.name,
            division=result.division,
            benchmark=result.benchmark,
            runs=tuple(call.name for call in result.runs),
        )
        if result.benchmark == CHECKPOINTING:
            model = model_of(result)
            processes = next((call.ranks for call in result.calls if call.ranks), None)
            rates = {f"{kind}_gib_per_second": rate for kind, rate in figures_of(result).items()}
            yield replace(row, model=model.name if model else None, processes=processes, rates=rates)
        elif result.benchmark == KV_CACHE:
            yield replace(row, model=result.model_folder)
        else:
            first = next((call for call in result.runs if call.run), None)
            if first is not None:
                setup, processes = first.setup, first.printed.accelerators
                row = replace(row, model=setup.workload, accelerator=setup.accelerator, processes=processes)
            yield row
