"""Findings of checks and audits, as records that can be listed, counted and written to files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]
"""`error`: it breaks a rule or contradicts the files; `warning`: it may do so; `info`: what the reader must know."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""


@dataclass(frozen=True)
class Finding:
    """What was seen, what was wanted, and how to fix it."""

    severity: Severity
    rule: str
    """Id of the rule, from the edition of the rules or the audit."""
    seen: str
    wanted: str
    fix: str


@dataclass(frozen=True)
class Located:
    """A finding with the file or folder that it concerns."""

    path: str
    finding: Finding
    official: str | None = None
    """Name of the rule in the edition's own checker; None where it has none."""
