"""A saved audit of many runs, as `dlemu audit --report` left it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from datagen.errors import UserError
from dlemu.report.result import read_json

AUDIT = "audit.json"
AuditRow = Mapping[str, Any]
System = tuple[str, Sequence[AuditRow]]
"""A name, and its runs."""
_NEEDED = ("path", "system", "run", "basis", "printed_by", "findings", "au_printed_percent", "errors")


@dataclass(frozen=True)
class Audit:
    """All audited runs, and what was asked."""

    folder: str
    answer: dict[str, Any]
    """audit.json."""

    @cached_property
    def runs(self) -> list[AuditRow]:
        """A mapping a run, system by system."""
        return sorted(self.answer["runs"], key=lambda run: (run["system"], run["run"]))

    @cached_property
    def systems(self) -> list[System]:
        """Runs of each system and kind, by a name that no other has."""
        found: list[System] = []
        for system, group in groupby(self.runs, key=lambda run: run["system"]):
            runs = list(group)
            kinds = sorted({kind(run) for run in runs})
            for one in kinds:
                name = system if len(kinds) == 1 else f"{system}: {one}"
                found.append((name, [run for run in runs if kind(run) == one]))
        return found


def open_audit(folder: str) -> Audit:
    """Read a saved audit; raises UserError when it is damaged or of another version."""
    answer = read_json(folder, AUDIT)
    runs = answer.get("runs")
    whole = isinstance(runs, list) and runs and all(isinstance(run, dict) and {*_NEEDED} <= run.keys() for run in runs)
    if not whole or not isinstance(answer.get("summary"), dict):
        path = os.path.join(folder, AUDIT)
        raise UserError(f"{path} is damaged, or of another version of dlemu: run `dlemu audit --report` again")
    return Audit(folder, answer)


def kind(run: AuditRow) -> str:
    """Return what a run is of: `unet3d h100`."""
    return " ".join(filter(None, (run.get("workload"), run.get("accelerator")))) or "workload unknown"


def again(run: AuditRow, what: str) -> float | None:
    """Return AU or samples/s by the formula that printed them, None where it is not known."""
    by = run["printed_by"]
    if by is None:
        return None
    value: float | None = run.get(f"au_{by}_percent" if what == "au" else f"samples_per_second_{by}")
    return value


def rate_apart_percent(run: AuditRow) -> float | None:
    """Return how far the recomputed samples/s lie from the printed ones."""
    found, printed = again(run, "samples_per_second"), run.get("samples_per_second_printed")
    return 100 * (found / printed - 1) if found is not None and printed else None


def au_apart_points(run: AuditRow) -> float | None:
    """Return how far the recomputed AU lies from the printed one."""
    found, printed = again(run, "au"), run["au_printed_percent"]
    return found - printed if found is not None and printed is not None else None
