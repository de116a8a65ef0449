"""What an analysis found, as a code with its numbers: the job that was analysed makes the sentences of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Severity = Literal["info", "caution", "loud"]
"""`info`: a reason; `caution`: what a reader of the numbers must know; `loud`: the numbers are not the storage's."""
Confidence = Literal["high", "medium", "low"]
What = TypeVar("What", bound=str)
"""What a kind of job can be limited by: a Literal of its own."""
Number = float | int | str | None
"""A number, or the name of what it is of (a host, a folder); its unit is in its key. None: not finite, in JSON."""


@dataclass(frozen=True)
class Finding:
    """One thing found. Codes are stable, sentences may change from version to version."""

    code: str
    severity: Severity = "info"
    numbers: dict[str, Number] = field(default_factory=dict)
    """By names with units: `loss_percent`, `readers`."""


@dataclass(frozen=True, kw_only=True)
class LimitedBy(Generic[What]):
    """What limited a job, or a part of it."""

    what: What
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    """`seen` as sentences, and `advice` those of `to_do`: the job makes them."""
    advice: tuple[str, ...] = ()
    seen: tuple[Finding, ...] = ()
    """The evidence as codes with their numbers."""
    to_do: tuple[Finding, ...] = ()
    """The advice as codes with their numbers."""
