"""One line of the proof: what theory says, what was measured, and how far apart they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Check:
    """A number beside its truth, or a word beside the right one."""

    case: str
    what: str
    theory: float | str
    measured: float | str | None
    """None when dlemu gave none."""
    unit: str = ""
    _: KW_ONLY
    within: float = 0.0
    """How far apart they may be: in the unit, or in percent of the theory."""
    percent: bool = False
    """`within` is in percent of the theory."""
    at_most: bool = False
    """Only too much is wrong."""
    cpu_wait_percent: float | None = None
    """Share of the run's time in which some task of the host wanted a core and had none."""
    columns = ("case", "what", "theory", "measured", "off by", "CPU wait", "")

    @property
    def off(self) -> float | None:
        """How far off: measured - theory, in the unit or in percent of the theory. None for words."""
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
        """The line as it stands in tables."""
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


def advice(case: str, wanted: str, given: Sequence[str]) -> Check:
    """Hold that the advice given has the words wanted; shows all of it where it has not."""
    text = "; ".join(given)
    return Check(case, "advice", wanted, wanted if wanted in text else text)


def _shown(value: float | str | None, unit: str) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else f"{value:.2f} {unit}".rstrip()
