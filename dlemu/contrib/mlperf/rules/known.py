"""Every rule of `dlemu mlperf check` and `dlemu audit`: its meaning, severity and source.

The rules are in known.yaml; docs/mlperf-rules.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import yaml

from dlemu.results.finding import Severity

ALL = ("1.0", "2.0", "3.0")


@dataclass(frozen=True, kw_only=True)
class KnownRule:
    """One rule."""

    name: str
    severity: str
    """`error`, `warning` or `info`; text where it depends on the edition."""
    meaning: str
    editions: tuple[str, ...] = ALL
    """Editions whose results it applies to."""
    text: str = ""
    """The official text, workload file or tool that has this rule; empty for dlemu's own rules."""
    official: Mapping[str, str] = field(default_factory=dict)
    """Edition -> the rule's name in that edition's checker."""
    warned: bool = False
    """Whether this was a mere warning when v3.0's round was judged, though the tool has rejected it since."""


@cache
def rule_groups() -> Mapping[str, tuple[KnownRule, ...]]:
    """Return subject (a heading of the documentation) -> its rules, in the documentation's order."""
    stated = yaml.safe_load(files("dlemu.contrib.mlperf.rules").joinpath("known.yaml").read_text(encoding="utf-8"))
    return {title: tuple(_rule(name, row) for name, row in rules.items()) for title, rules in stated.items()}


def _rule(name: str, row: Mapping[str, object]) -> KnownRule:
    return KnownRule(
        name=name,
        severity=str(row["severity"]),
        meaning=str(row["meaning"]),
        editions=tuple(edition for edition in ALL if edition in row.get("editions", ALL)),  # type: ignore[operator]
        text=str(row.get("text", "")),
        official={edition: str(row[edition]) for edition in ALL if edition in row},
        warned=row.get("warned") is True,
    )


@cache
def known_rules() -> Mapping[str, KnownRule]:
    """Return name -> rule."""
    return {rule.name: rule for rules in rule_groups().values() for rule in rules}


def severity_published(rule: str) -> Severity:
    """Return the severity of a broken rule when v3.0's round was judged."""
    known = known_rules().get(rule)
    return "warning" if known and known.warned else "error"


_OPEN_NAMES = {
    "3.6.2 trainingClosedSubmissionParameters": "3.6.3 trainingOpenSubmissionParameters",
    "4.6.1 checkpointClosedMpiProcesses": "4.6.4 checkpointOpenSubmissionScaling",
}
"""Name of a checker's rule in CLOSED -> its name in OPEN, where they differ."""


def official_name(rule: str, edition: str, division: str) -> str | None:
    """Return the name of one of dlemu's rules in the edition's own checker; None if that has no such rule."""
    known = known_rules().get(rule)
    name = known.official.get(edition) if known else None
    return _OPEN_NAMES.get(name or "", name) if division == "open" else name
