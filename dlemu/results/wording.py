"""Findings as sentences, by the words that a kind of job has for its codes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from string import Formatter
from typing import Any

from dlemu.metrics.findings import Finding

Wording = Mapping[str, str | Callable[..., str]]
"""Code -> its sentence as a format of the finding's numbers, or a function of them.

`{readers:count reader}` is "1 reader", "2 readers".
"""


def count(number_of: int, name: str) -> str:
    """Return a count with its noun: 1 accelerator, 2 accelerators, 2 processes."""
    return f"{number_of:,} {name}{('es' if name.endswith('s') else 's') * (number_of != 1)}"


class _Counting(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        name = format_spec.removeprefix("count ")
        return count(value, name) if name != format_spec else super().format_field(value, format_spec)


def sentence(finding: Finding, words: Wording) -> str:
    """Return the finding as a sentence; raises KeyError for a code without words."""
    said = words[finding.code]
    return said(**finding.numbers) if callable(said) else _Counting().vformat(said, (), finding.numbers)


def sentences(findings: Iterable[Finding], words: Wording, continuing: Container[str] = ()) -> tuple[str, ...]:
    """Return the findings as sentences; those of the codes in `continuing` go on with the sentence before them."""
    parts: list[str] = []
    for finding in findings:
        said = sentence(finding, words)
        if finding.code in continuing:
            parts[-1] += f"; {said}"
        else:
            parts.append(said)
    return tuple(parts)
