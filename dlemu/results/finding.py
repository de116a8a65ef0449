"""What a check or an audit found: one record each, so that all of them can be listed, counted and written to files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]
"""`error`: it breaks a rule or contradicts the files; `warning`: it may; `info`: what the reader must know."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Gravest first."""


@dataclass(frozen=True)
class Finding:
    """One thing found: what was seen, what was wanted, and how to repair it."""

    severity: Severity
    rule: str
    """The rule's id, as the edition or the audit names it."""
    seen: str
    wanted: str
    fix: str


@dataclass(frozen=True)
class Located:
    """A finding and the file or folder that it is of."""

    path: str
    finding: Finding
    official: str | None = None
    """What the edition's own checker calls the rule; None where it has none."""
