"""Turns findings (codes with numbers) into sentences; each kind of job has a table with the wording of its codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any, TypeVar

from dlemu.metrics.findings import Finding

T = TypeVar("T")
Wording = Mapping[str, T]
"""Code, or `CODE.PATTERN` of a code with several forms -> texts, which are format strings for the finding's numbers.

`{readers:count reader}` gives "1 reader" or "2 readers". Unless `ranks` is 1, `{ranks:several , or fewer}` gives
", or fewer" and `{ranks:several  or fewer}`, with two spaces, " or fewer". `{at_seconds:clock}` gives 00:06 or 1:00:06.
"""


def count(number: int, name: str) -> str:
    """Return a count with its noun: 1 accelerator, 2 accelerators, 2 processes."""
    ending = "" if number == 1 else "es" if name.endswith("s") else "s"
    return f"{number:,} {name}{ending}"


def at_scale(divisor: float | None, scale: str | None = "") -> str:
    """Return a phrase to follow a number of accelerators: ` with samples 1/256 of real size`.

    For samples of full or unknown size, it is ` at scale=NAME` if a scale is given, else empty.
    """
    if divisor is None or abs(divisor - 1) < 0.005:
        return f" at scale={scale}" if scale else ""
    return f" with samples {f'1/{divisor:.3g} of' if divisor > 1 else f'{1 / divisor:.3g} x'} real size"


VISIBLE = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
"""For `str.translate`: escapes all control characters but tabs and line breaks, as they could rewrite the terminal."""
TRADEMARK = (
    "MLPerf is a trademark of the MLCommons Association. dlemu is none of its products, and no result of dlemu is one"
    " that MLCommons has verified."
)
"""The notice that must accompany the name MLPerf wherever it is published."""


class _FindingFormatter(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        directive, _, text = format_spec.partition(" ")
        if directive == "count":
            return count(value, text)
        if directive == "several":
            return text if value != 1 else ""
        if directive == "clock":
            minutes, seconds = divmod(int(value), 60)
            hours, minutes = divmod(minutes, 60)
            return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
        return str(super().format_field(value, format_spec))


def fill_in(text: str, numbers: Mapping[str, Any]) -> str:
    """Return a text with its placeholders replaced by the numbers."""
    return _FindingFormatter().vformat(text, (), numbers)


def text_of(finding: Finding, wording: Wording[T]) -> T:
    """Return the text of a finding, still with placeholders for its numbers; raises KeyError for an unknown code."""
    pattern = finding.numbers.get("pattern")
    return wording[finding.code if pattern is None else f"{finding.code}.{pattern}"]


def sentences(findings: Iterable[Finding], wording: Wording[str]) -> tuple[str, ...]:
    """Return the text of each finding, with its numbers filled in."""
    return tuple(fill_in(text_of(finding, wording), finding.numbers) for finding in findings)
