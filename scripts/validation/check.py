"""One line of the validation: what theory says, what was measured, and by how much they may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Check:
    """A measured number, or a word, and what it should be."""

    case: str
    what: str
    theory: float | str
    measured: float | str | None
    """None if dlemu gave none."""
    unit: str = ""
    _: KW_ONLY
    within: float = 0.0
    """Tolerance, in the unit or in percent of the theory."""
    percent: bool = False
    """Whether the tolerance is in percent of the theory."""
    at_most: bool = False
    """Whether the measured number may be any smaller."""
    cpu_wait_percent: float | None = None
    """Share of the run's time in which some task of the host waited for a core."""
    columns = ("case", "what", "theory", "measured", "off by", "CPU wait", "")

    @property
    def off(self) -> float | None:
        """Measured - theory, in the unit or in percent of the theory; None for words."""
        if isinstance(self.theory, str) or isinstance(self.measured, str) or self.measured is None:
            return None
        difference = self.measured - self.theory
        return 100 * difference / self.theory if self.percent else difference

    @property
    def holds(self) -> bool:
        if isinstance(self.theory, str):
            return self.measured == self.theory
        off = self.off
        return off is not None and (off if self.at_most else abs(off)) <= self.within

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        return [
            self.case,
            self.what,
            _shown(self.theory, self.unit),
            _shown(self.measured, self.unit),
            self._distance(),
            "" if self.cpu_wait_percent is None else f"{self.cpu_wait_percent:.0f} %",
            self.status,
        ]

    @property
    def status(self) -> str:
        return "ok" if self.holds else "MISSED"

    @property
    def text(self) -> str:
        """The line in the terminal."""
        case, what, theory, measured, off, cpu_wait, verdict = self.cells
        return f"{case:<50} {what:<34} {measured:>14}   theory {theory:<14} {off:<28} CPU wait {cpu_wait:<6} {verdict}"

    def _distance(self) -> str:
        off = self.off
        if off is None:
            return ""
        unit = "%" if self.percent else self.unit
        sign = "<=" if self.at_most else "+-"
        return f"{off:+.2f} {unit} (wanted {sign} {self.within:g})"


def advice(case: str, wanted: str, sentences: Sequence[str]) -> Check:
    """Check that dlemu's advice contains the words `wanted`; if not, the line shows the whole advice."""
    text = "; ".join(sentences)
    return Check(case, "advice", wanted, wanted if wanted in text else text)


def _shown(value: float | str | None, unit: str) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else f"{value:.2f} {unit}".rstrip()
