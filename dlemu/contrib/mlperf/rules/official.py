"""Every rule of v3.0's Rules.md and every further check of its tool, with dlemu's rules for it, from official.yaml."""

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
    """dlemu's rules that check it."""
    note: str = ""
    """How dlemu's check differs, or why there is none."""

    @property
    def status(self) -> str:
        """`known`, `known otherwise`, `not checkable`, or `unknown`."""
        if self.ours:
            return "known otherwise" if self.note else "known"
        return "not checkable" if self.note else "unknown"


@cache
def official_rules() -> tuple[OfficialRule, ...]:
    """Return the rules in the order of Rules.md."""
    stated = yaml.safe_load(files("dlemu.contrib.mlperf.rules").joinpath("official.yaml").read_text(encoding="utf-8"))
    return tuple(
        OfficialRule(number, row["name"], tuple(row.get("ours", ())), row.get("note", ""))
        for number, row in stated.items()
    )


def unknown_rules() -> list[OfficialRule]:
    """Return the rules that dlemu neither checks nor lists as not checkable."""
    return [rule for rule in official_rules() if rule.status == "unknown"]


def listed() -> Iterator[tuple[OfficialRule, str]]:
    """Yield every official rule with a text: dlemu's rules that check it, and the note."""
    for rule in official_rules():
        names = ", ".join(rule.ours)
        yield rule, f"{names}: {rule.note}" if names and rule.note else names or rule.note or "unknown"
