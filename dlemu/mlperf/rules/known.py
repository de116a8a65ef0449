"""Every rule that `dlemu mlperf check` and `dlemu audit` know: what it means, how grave it is, and where it comes from.

They are listed in known.yaml, of which docs/mlperf-rules.md is made.
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
    """As it is given; where it depends on the edition, in words."""
    meaning: str
    editions: tuple[str, ...] = ALL
    """Editions whose results it is applied to."""
    text: str = ""
    """Where the rules' text, a workload file or a tool has it; empty for a rule of dlemu's own."""
    official: Mapping[str, str] = field(default_factory=dict)
    """What an edition's own checker calls it."""
    warned: bool = False
    """Whether v3.0's own round only warned of what its tool refuses since."""


@cache
def rule_groups() -> Mapping[str, tuple[KnownRule, ...]]:
    """Return the rules by what they are on, in the order of the documentation."""
    stated = yaml.safe_load(files("dlemu.mlperf.rules").joinpath("known.yaml").read_text(encoding="utf-8"))
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
    """Return the rules by their names."""
    return {rule.name: rule for rules in rule_groups().values() for rule in rules}


def severity_published(rule: str) -> Severity:
    """Return how grave a broken rule was in v3.0's own round."""
    known = known_rules().get(rule)
    return "warning" if known and known.warned else "error"


_OF_OPEN = {
    "3.6.2 trainingClosedSubmissionParameters": "3.6.3 trainingOpenSubmissionParameters",
    "4.6.1 checkpointClosedMpiProcesses": "4.6.4 checkpointOpenSubmissionScaling",
}
"""Rules of CLOSED that have another name in OPEN."""


def official_name(rule: str, edition: str, division: str) -> str | None:
    """Return what the edition's checker calls a rule of ours; None where it has none."""
    known = known_rules().get(rule)
    called = known.official.get(edition) if known else None
    return _OF_OPEN.get(called or "", called) if division == "open" else called
