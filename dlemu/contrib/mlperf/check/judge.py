"""Checks a folder: applies every rule, names the findings as the edition's own checker does, returns data or CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.tolerant import mapping, read_json
from dlemu.contrib.mlperf.check import submission_tree
from dlemu.contrib.mlperf.check.checkpoint_rules import CHECKPOINT_RULES, figures_of, model_of, processes_of
from dlemu.contrib.mlperf.check.copy_rules import CHECKPOINT_COPY_RULES, COPY_RULES, copied_runs
from dlemu.contrib.mlperf.check.kv_rules import copied_kv, kv_findings
from dlemu.contrib.mlperf.check.provenance_rules import ORIGIN_RULES, PROVENANCE_RULES
from dlemu.contrib.mlperf.check.result_rules import RESULT_RULES
from dlemu.contrib.mlperf.check.run_records import RECORD_RULES
from dlemu.contrib.mlperf.check.submission_tree import CHECKPOINTING, KV_CACHE, REHEARSAL, TRAINING, Result, Submission
from dlemu.contrib.mlperf.check.system_description import check_systems
from dlemu.contrib.mlperf.check.time_rules import TIME_RULES
from dlemu.contrib.mlperf.check.tree_rules import FILE_RULES, SUBMISSION_RULES, call_files, linked_folders, top_folders
from dlemu.contrib.mlperf.rules.editions import Reading
from dlemu.contrib.mlperf.rules.known import SEVERITIES, Finding, at, by_rule_at, known_rules, official_name
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import UserError

TREE = "tree"
"""What `dlemu mlperf run` writes into its folder: the rehearsal's record, and the tree in the edition's layout."""
_LEFT_TO_SUBMITTER = ("submission.code", "systems.pdf", "systems.unfilled", "tool.other")
"""Rules on what the submitter or mlpstorage adds later: in a rehearsal, their findings are only `info`."""
_RULES: Mapping[str, tuple[Any, ...]] = {
    TRAINING: (*RESULT_RULES, *COPY_RULES, *FILE_RULES),
    CHECKPOINTING: (*CHECKPOINT_RULES, *CHECKPOINT_COPY_RULES),
    KV_CACHE: (kv_findings,),
}
"""Benchmark -> the rules on its results."""
_RULES_OF_ALL = (*TIME_RULES, *PROVENANCE_RULES, submission_tree.other_editions)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A checked folder: the results in it and all findings."""

    root: str
    reading: Reading
    """How strictly the rules of v3.0 were read."""
    results: tuple[Result[Any], ...] = ()
    """Of every benchmark."""
    submissions: tuple[Submission, ...] = ()
    rehearsal: Mapping[str, Any] | None = None
    """Content of `rehearsal.json` when `dlemu mlperf run` made the folder, else None."""
    findings: tuple[Finding, ...] = ()

    def count(self, severity: str) -> int:
        """Return the number of findings with this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return not self.count("error")

    @property
    def unjudged(self) -> int:
        """Number of runs of benchmarks that dlemu has no rules for."""
        return sum(finding.rule == "run.other" for finding in self.findings)


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
    found = submission_tree.find_results(root, edition, division, reading)
    old = "per_epoch_stats.json"  # of DLIO of v0.5 and v1.0, which kept the times of rank 0 only: without its number
    are_older = [result.runs and all(old in run.files for run in result.runs) for result in found.results]
    if edition is None and are_older and all(are_older):
        raise UserError(
            f"{folder} holds runs of MLPerf Storage v1.0 or older: wanted v2.0 or later; `dlemu audit` recomputes "
            "their numbers"
        )
    organisations: list[Submission] = []
    for tree, rules in found.editions.items():
        organisations += submission_tree.submissions(tree, rules, division)
    findings = [*found.others, *linked_folders(root), *copied_runs(found.results), *copied_kv(found.results)]
    for result in found.results:
        findings += _as_judged(_findings_of(result), result)
    findings += _submission_findings(found, organisations)
    if rehearsal is not None:
        findings.append(by_rule_at(root, "rehearsal", "a rehearsal by dlemu: neither mlpstorage nor DLIO ran"))
        findings = [replace(one, severity="info") if one.rule in _LEFT_TO_SUBMITTER else one for one in findings]
    return Checked(
        root=root,
        reading=reading,
        results=found.results,
        submissions=tuple(organisations),
        rehearsal=rehearsal,
        findings=tuple(
            sorted(dict.fromkeys(findings), key=lambda one: (SEVERITIES.index(one.severity), one.rule, one.path))
        ),
    )


def _read_rehearsal(folder: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return a rehearsal's record (None without one) and the folder to check: its tree, or the given part of it."""
    if os.path.isfile(os.path.join(folder, REHEARSAL)):
        return mapping(read_json(os.path.join(folder, REHEARSAL), [])), os.path.join(folder, TREE)
    for above in (Path(folder), *Path(folder).parents):
        record = str(above.parent / REHEARSAL)
        if above.name == TREE and os.path.isfile(record):
            return mapping(read_json(record, [])), folder
    return None, folder


def _findings_of(result: Result[Any]) -> Iterator[Finding]:
    """Yield what a result breaks of the rules of its benchmark, and of those on any call."""
    for rule in (*_RULES[result.benchmark], *_RULES_OF_ALL):
        yield from rule(result)
    for leaf in result.leaves:
        yield from at(leaf.path, leaf.broken)
        for rule in (*RECORD_RULES, call_files):
            yield from at(leaf.path, rule(leaf, result))


def _submission_findings(found: submission_tree.Found, organisations: Iterable[Submission]) -> Iterator[Finding]:
    """Yield what the submissions break: the rules on submissions apply whatever benchmarks they hold."""
    calls = [leaf for result in found.results if result.benchmark != KV_CACHE for leaf in result.leaves]
    first_of_tree: dict[str, Submission] = {}
    for submission in organisations:
        for rule in (*SUBMISSION_RULES, *ORIGIN_RULES):
            yield from _as_judged(rule(submission), submission)
        yield from _as_judged(check_systems(submission, calls), submission)
        first_of_tree.setdefault(os.path.dirname(os.path.dirname(submission.path)), submission)
    for tree in first_of_tree.keys() & found.editions.keys():
        yield from _as_judged(top_folders(tree), first_of_tree[tree])


def _as_judged(findings: Iterable[Finding], subject: Result[Any] | Submission) -> Iterator[Finding]:
    """Add the edition's own name of each rule, and apply the table of rules: its editions, and its severity in each."""
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


def finding_rows(checked: Checked) -> list[Finding]:
    """Return the findings as rows of a table: their paths are relative to the root."""
    return [replace(finding, path=os.path.relpath(finding.path, checked.root)) for finding in checked.findings]


def result_rows(checked: Checked) -> Iterator[ResultRow]:
    """Yield the results as rows of a table."""
    for result in checked.results:
        row = ResultRow(
            path=os.path.relpath(result.path, checked.root),
            edition=result.edition.name,
            division=result.division,
            benchmark=result.benchmark,
            runs=tuple(leaf.name for leaf in result.runs),
        )
        if result.benchmark == CHECKPOINTING:
            model = model_of(result)
            rates = {f"{kind}_gib_per_second": rate for kind, rate in figures_of(result).items()}
            yield replace(row, model=model.name if model else None, processes=processes_of(result), rates=rates)
        elif result.benchmark == KV_CACHE:
            yield replace(row, model=result.model_folder)
        else:
            first = next((leaf for leaf in result.runs if leaf.run), None)
            setup, printed = (first.setup, first.printed) if first else (Setup(), Printed())
            accelerators = printed.accelerators
            yield replace(row, model=setup.workload, accelerator=setup.accelerator, processes=accelerators)
