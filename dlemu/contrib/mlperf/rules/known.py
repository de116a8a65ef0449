"""Findings, and the table of all rules of `dlemu mlperf check` and `dlemu audit`, read from known.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec
import yaml

Severity = Literal["error", "warning", "info"]
"""`error`: a rule is broken or files contradict each other; `warning`: this may be so; `info`: for information."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # most severe first
ALL = ("2.0", "3.0")  # editions, oldest first
_OPEN_NAMES = {
    "3.6.2 trainingClosedSubmissionParameters": "3.6.3 trainingOpenSubmissionParameters",
    "4.6.1 checkpointClosedMpiProcesses": "4.6.4 checkpointOpenSubmissionScaling",
}
"""Name of a checker's rule in CLOSED -> its name in OPEN, where they differ."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was seen, what was wanted, and how to fix it."""

    severity: Severity
    rule: str
    """Name of the rule in known.yaml."""
    official: str = ""
    """Name of the rule in the edition's own checker; empty where it has none."""
    path: str = ""
    """The file or folder concerned."""
    seen: str
    wanted: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class KnownRule:
    name: str
    severity: str
    """The usual severity; words on the exceptions may follow: `error; warning for a log`."""
    meaning: str
    editions: tuple[str, ...] = ALL
    """Editions whose results it applies to."""
    text: str = ""
    """The official text, workload file or tool that has this rule; empty for dlemu's own rules."""
    official: Mapping[str, str] = field(default_factory=dict)
    """Edition -> the rule's name in that edition's checker."""
    wanted: str = ""
    """Default of `Finding.wanted`, as `fix` is of `Finding.fix`."""
    fix: str = ""
    warned: frozenset[str] = frozenset()
    """Editions in which its errors are warnings; `published` stands for v3.0 as its round was judged."""


@cache
def rule_groups() -> Mapping[str, tuple[KnownRule, ...]]:
    """Return the rules by subject; the subjects are the headings of docs/mlperf-rules.md, in the same order."""
    groups = rules_file("known.yaml")
    return {
        title: tuple(
            msgspec.convert({**row, "name": name, "official": {key: row[key] for key in ALL if key in row}}, KnownRule)
            for name, row in rules.items()
        )
        for title, rules in groups.items()
    }


def rules_file(name: str) -> Any:
    """Return the content of a YAML file of this package."""
    return yaml.safe_load(files("dlemu.contrib.mlperf.rules").joinpath(name).read_text(encoding="utf-8"))


@cache
def known_rules() -> Mapping[str, KnownRule]:
    return {rule.name: rule for rules in rule_groups().values() for rule in rules}


def by_rule(rule: str, seen: str, wanted: str = "", fix: str = "", severity: Severity | None = None) -> Finding:
    """Return a finding of a rule; the defaults of `wanted`, `fix` and `severity` are those of known.yaml."""
    row = known_rules()[rule]
    usual: Any = row.severity.split()[0].rstrip(";")  # of `error; warning for a log`
    return Finding(severity=severity or usual, rule=rule, seen=seen, wanted=wanted or row.wanted, fix=fix or row.fix)


def by_rule_at(
    path: str, rule: str, seen: str, wanted: str = "", fix: str = "", severity: Severity | None = None
) -> Finding:
    """Return a finding as `by_rule` does, on a file or folder."""
    return replace(by_rule(rule, seen, wanted, fix, severity), path=path)


def with_path(path: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings, with the path of the file or folder that they concern."""
    return (replace(finding, path=path) for finding in findings)


def unapplied(rule: str, facts: Mapping[str, object]) -> Iterator[Finding]:
    """Yield a finding that a rule could not be applied, if one of the facts (name -> value) that it needs is None."""
    unknown = [name for name, value in facts.items() if value is None]
    if unknown:
        yield by_rule("unapplied", f"{rule}: {', '.join(unknown)} not known", f"{rule} applied")


def differing(path: str, rule: str, facts: Mapping[str, Iterable[object]]) -> Iterator[Finding]:
    """Yield a finding for each fact (name -> values in all runs or calls) with several values; None is unknown."""
    for name, values in facts.items():
        different = sorted({str(value) for value in values if value is not None})
        if len(different) > 1:
            yield by_rule_at(path, rule, f"{name}: {first_few(different, ' and ')}")


def first_few(texts: Sequence[str], separator: str = "; ", limit: int = 3) -> str:
    """Return the first texts, joined, and the number of those left out: `a; b; c and 4 more`."""
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return separator.join(texts[:limit]) + more


def official_name(rule: str, edition: str, division: str) -> str:
    """Return the name that the edition's own checker has for a rule of dlemu; empty if it has no such rule."""
    name = known_rules()[rule].official.get(edition, "")
    return _OPEN_NAMES.get(name, name) if division == "open" else name
