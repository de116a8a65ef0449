"""From a folder to all findings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from datagen.errors import UserError
from dlemu.mlperf.audit.folders import find_runs
from dlemu.mlperf.audit.tolerant import mapping, read_json, text
from dlemu.mlperf.audit.trees import audit_trees
from dlemu.mlperf.check import dataset, files, runs, single_run, submission
from dlemu.mlperf.check.find import Finder
from dlemu.mlperf.check.ids import official_id
from dlemu.mlperf.check.model import Checked, Located, Result, Submission
from dlemu.mlperf.check.systems import check_systems
from dlemu.mlperf.finding import Finding
from dlemu.mlperf.rules import Division

REHEARSAL, TREE = "rehearsal.json", "tree"
"""What `dlemu mlperf run` leaves in its folder: its record, and the edition's tree."""
RULES = (*single_run.RULES, *dataset.RULES, *runs.RULES, *files.RULES)
_LEFT_TO_DO = ("submission.code", "systems.pdf", "systems.unfilled", "tool.other")
"""What a submitter adds by hand, or mlpstorage: in a rehearsal it is not missing yet."""


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
    found = [*finder.findings, *_of_rehearsal(root, rehearsal), *_applied(root, results, submissions)]
    if not results:
        fix = "give the folder above the runs, or `dlemu audit` for other results"
        seen = "no run of training below"
        found.append(Located(root, Finding("error", "tree.empty", seen, "runs as mlpstorage or DLIO leave them", fix)))
    if rehearsal is not None:
        found = [_postponed(one) for one in found]
    return Checked(
        root=root,
        results=tuple(results),
        submissions=tuple(submissions),
        rehearsal=rehearsal,
        findings=tuple(sorted(dict.fromkeys(found), key=_place)),
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
        for rule in RULES:
            yield from _named(rule(result), result)
    for one in submissions:
        for upper_rule in submission.RULES:
            yield from _named(upper_rule(one), one)
        yield from _named(check_systems(one, results), one)
    if submissions:
        yield from _named(submission.top(root, submissions), submissions[0])


def _named(found: Iterable[Located], of: Result | Submission) -> Iterator[Located]:
    """Give findings the names that their edition's checker has for the rules."""
    for one in found:
        yield replace(one, official=official_id(one.finding.rule, of.edition.name, of.division))


def _postponed(one: Located) -> Located:
    if one.finding.rule not in _LEFT_TO_DO:
        return one
    return replace(one, finding=replace(one.finding, severity="info"))


def _place(one: Located) -> tuple[int, str, str]:
    return ("error", "warning", "info").index(one.finding.severity), one.finding.rule, one.path
