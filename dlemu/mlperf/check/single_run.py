"""What each run breaks by itself: dataset size, settings, overrides, hosts, AU; and what its own files contradict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dlemu.mlperf.audit.by_rules import Rulebook, rule_findings
from dlemu.mlperf.audit.run import AuditedRun
from dlemu.mlperf.check.model import Leaf, Located, Result, Rule
from dlemu.mlperf.finding import Finding, Severity

_TOLD_BY_FILES = ("summary.missing", "config.missing", "config.assumed")
"""Findings of the audit that the rules on required files tell too."""
FEW_ACCELERATORS = 4
"""Below which v3.0's checker asks whether one host could not drive more (3.3.3)."""


def by_the_rules(result: Result) -> Iterator[Located]:
    """Hold every run against the edition's rules of one run, with the AU that its steps give."""
    book = Rulebook(result.edition.name, result.division)
    for leaf in result.runs:
        if leaf.run is not None and (leaf.printed.accelerators or leaf.setup.config is not None):
            printed = replace(leaf.printed, au_percent=judged_au_percent(leaf.run))
            for found in rule_findings(leaf.setup, printed, book):
                yield Located(leaf.path, _told(found, leaf, result))


def judged_au_percent(run: AuditedRun) -> float | None:
    """Return the run's AU by the formula that printed it, from its steps; as printed where no steps were kept.

    The word `success` counts for nothing.
    """
    found = run.recomputed.formulas.get(run.printed_by or "")
    if run.recomputed.basis == "steps" and found is not None and found.au_percent is not None:
        return found.au_percent
    return run.printed.au_percent


def _told(found: Finding, leaf: Leaf, result: Result) -> Finding:
    rule = found.rule.removeprefix("rules.")
    if rule != "au.low" or leaf.run is None:
        return replace(found, rule=rule)
    basis = "from its steps" if leaf.run.recomputed.basis == "steps" else "as printed: no steps kept"
    # v3.0's checker wants it of the warm-up, too; the text of the rules, of the measured runs.
    warm_up = leaf is result.warm_up and not result.edition.counts_runs
    severity: Severity = "warning" if warm_up else found.severity
    return replace(found, rule=rule, severity=severity, seen=f"{found.seen} ({basis})")


def recomputed(result: Result) -> Iterator[Located]:
    """Tell what the audit found: files that contradict each other or can't be read."""
    for leaf in result.runs:
        for found in leaf.run.findings if leaf.run else ():
            if result.single or found.rule not in _TOLD_BY_FILES:
                yield Located(leaf.path, found)


def tool(result: Result) -> Iterator[Located]:
    """CLOSED results are DLIO's, unchanged (v3.0's Rules.md, section 1)."""
    for leaf in result.runs:
        if result.division == "closed" and leaf.run is not None and leaf.run.by_dlemu:
            fix = "repeat it with DLIO, or submit it as OPEN, by mlpstorage, and say so"
            seen = "dlio.log says that dlemu ran in DLIO's place"
            yield Located(leaf.path, Finding("error", "tool.other", seen, "for CLOSED, DLIO unchanged", fix))


def hosts(result: Result) -> Iterator[Located]:
    """Look at the hosts that the runs used."""
    for leaf in result.runs:
        yield from _named_hosts(leaf)
    first = next((leaf for leaf in result.runs if leaf.printed.accelerators), None)
    if result.edition.checks_tree and first is not None:
        count = first.printed.accelerators or 0
        if first.printed.hosts == 1 and count < FEW_ACCELERATORS:
            seen, wanted = f"{count} accelerators on one host", f"{FEW_ACCELERATORS} or more, if the storage feeds them"
            fix = "dlemu size finds the most that pass"
            yield Located(result.path, Finding("warning", "hosts.few", seen, wanted, fix))


def _named_hosts(leaf: Leaf) -> Iterator[Located]:
    named = leaf.argument("hosts")
    if leaf.printed.hosts == 1 and isinstance(named, list) and len(named) > 1:
        seen = f"the run was on 1 host, its metadata names {len(named)}"
        fix = "name the hosts that really ran"
        yield Located(leaf.path, Finding("error", "hosts.named", seen, "one host for a run on one", fix))


RULES: tuple[Rule, ...] = (by_the_rules, recomputed, tool, hosts)
