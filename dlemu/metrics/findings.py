"""What an analysis found, as a code with its numbers; each kind of job turns them into sentences (`wording.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, Self, TypeVar

Severity = Literal["info", "caution", "loud"]
"""`info`: a reason; `caution`: what a reader must know; `loud`: the numbers say something else than the storage."""
Confidence = Literal["high", "medium", "low"]
What = TypeVar("What", bound=str)
"""What a kind of job can be limited by: each kind has a Literal for it."""
Number = float | int | str | None
"""A number, whose unit is in its key, or the name of a host or folder; None: a number that is not finite (JSON)."""


@dataclass(frozen=True)
class Finding:
    """One thing found. Codes are stable, sentences may change from version to version."""

    code: str
    severity: Severity = "info"
    numbers: dict[str, Number] = field(default_factory=dict)
    """Name with unit -> value: `loss_percent`, `readers`."""

    @classmethod
    def of(cls, code: str, severity: Severity = "info", **numbers: Number) -> Self:
        """Return a finding with these numbers."""
        return cls(code, severity, numbers)


@dataclass(frozen=True, kw_only=True)
class LimitedBy(Generic[What]):
    """What limited a job, or a part of it."""

    what: What
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    """`seen` as sentences; the job makes them."""
    advice: tuple[str, ...] = ()
    """`to_do` as sentences."""
    seen: tuple[Finding, ...] = ()
    """The evidence as codes with their numbers."""
    to_do: tuple[Finding, ...] = ()
    """The advice as codes with their numbers."""

    @property
    def name(self) -> str:
        """What limited it, as text."""
        return self.what
