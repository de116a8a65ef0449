"""Every rule of v3.0's Rules.md, and the checks that its tool adds, as listed in official.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class OfficialRule:
    """One rule of the official text."""

    number: str
    name: str
    ours: tuple[str, ...] = ()
    """Rules here that hold a tree against it."""
    note: str = ""
    """How the check here differs, or why there is none."""

    @property
    def status(self) -> str:
        """`known`, `known otherwise`, `not checkable`, or `unknown`."""
        if self.ours:
            return "known otherwise" if self.note else "known"
        return "not checkable" if self.note else "unknown"


@cache
def official_rules() -> tuple[OfficialRule, ...]:
    """Return the rules in the order of the text."""
    stated = yaml.safe_load(files("dlemu.mlperf.rules").joinpath("official.yaml").read_text(encoding="utf-8"))
    return tuple(
        OfficialRule(number, row["name"], tuple(row.get("ours", ())), row.get("note", ""))
        for number, row in stated.items()
    )


def unknown_rules() -> list[OfficialRule]:
    """Return the rules that are neither known here nor listed as beyond a check."""
    return [rule for rule in official_rules() if rule.status == "unknown"]


def listed() -> Iterator[tuple[OfficialRule, str]]:
    """Yield every official rule with what is done about it here, in words."""
    for rule in official_rules():
        names = ", ".join(rule.ours)
        yield rule, f"{names}: {rule.note}" if names and rule.note else names or rule.note or "unknown"
