"""What an audit answers: a row of each run for tables and CSV, a report of each for JSON, and how runs are listed."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.audit.recompute import FORMULAS
from dlemu.extend import write_text


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One run as a row of a table; None where not known. docs/audit.md explains the columns."""

    path: str
    workload: str | None = None
    accelerator: str | None = None
    accelerators: int | None = None
    hosts: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    basis: str
    ranks_kept: int = 0
    verdict_printed: str | None = None
    printed_by: str | None
    au_printed_percent: float | None = None
    au_dlio_v1_percent: float | None = None
    au_dlio_percent: float | None = None
    au_dlio_v3_percent: float | None = None
    au_dlio_fork_percent: float | None = None
    au_whole_percent: float | None = None
    au_sustained_least_percent: float | None = None
    prefetch_credit_percent: float | None = None
    au_least_percent: float | None = None
    samples_per_second_printed: float | None = None
    samples_per_second_dlio_v1: float | None = None
    samples_per_second_dlio: float | None = None
    samples_per_second_dlio_v3: float | None = None
    samples_per_second_dlio_fork: float | None = None
    samples_per_second_least: float | None = None
    samples_per_second_most: float | None = None
    mib_per_second_printed: float | None = None
    loss_first_step_percent: float | None = None
    loss_load_percent: float | None = None
    loss_oversleep_percent: float | None = None
    loss_barrier_percent: float | None = None
    loss_slower_rank_percent: float | None = None
    errors: int
    warnings: int = 0
    findings: str = ""

    @property
    def from_blocks(self) -> bool:
        """Whether block times gave a number: without the settings they give none."""
        return self.basis == "blocks" and (self.au_whole_percent, self.samples_per_second_dlio_v1) != (None, None)

    @property
    def au_recomputed_percent(self) -> float | None:
        """AU by the formula that comes closest to the printed numbers."""
        value: float | None = getattr(self, f"au_{self.printed_by}_percent") if self.printed_by in FORMULAS else None
        return value

    @property
    def samples_per_second_recomputed(self) -> float | None:
        """Samples/s by the formula that comes closest to the printed numbers."""
        column = f"samples_per_second_{self.printed_by}"
        value: float | None = getattr(self, column) if self.printed_by in FORMULAS else None
        return value


_TOLD = ("severity", "rule", "seen", "wanted", "fix")
"""What is told of a finding whose run is known."""


def run_report(run: AuditedRun) -> dict[str, Any]:
    """Return a run with the numbers of each epoch and its findings, for `--json`."""
    printed = run.printed
    return asdict(audit_row(run)) | {
        "findings": [{key: getattr(one, key) for key in _TOLD} for one in run.findings],
        "au_threshold_percent": run.setup.au_threshold_percent,
        "epochs_printed": _epochs(printed.au_by_epoch, printed.samples_per_second_by_epoch),
        "epochs_recomputed": {
            name: _epochs(by.au_by_epoch, by.samples_per_second_by_epoch)
            for name, by in run.recomputed.formulas.items()
        },
    }


def _epochs(au: Sequence[float], rate: Sequence[float]) -> dict[str, list[float | None]]:
    figures = {"au_percent": au, "samples_per_second": rate}
    return {name: [one if math.isfinite(one) else None for one in values] for name, values in figures.items()}


def audit_row(run: AuditedRun) -> AuditRow:
    setup, printed, recomputed = run.setup, run.printed, run.recomputed
    levels = [finding.severity for finding in run.findings]
    return AuditRow(
        path=run.path,
        workload=setup.workload or printed.model,
        accelerator=setup.accelerator,
        accelerators=run.accelerators or None,
        hosts=printed.hosts,
        epochs=recomputed.epochs or printed.epochs or setup.epochs,
        steps_per_epoch=recomputed.steps_per_epoch,
        basis=recomputed.basis,
        ranks_kept=recomputed.ranks_kept,
        verdict_printed=printed.verdict,
        printed_by=run.printed_by,
        au_printed_percent=printed.au_percent,
        **{f"au_{name}_percent": by.au_percent for name, by in recomputed.formulas.items()},
        **{f"samples_per_second_{name}": by.samples_per_second for name, by in recomputed.formulas.items()},
        au_whole_percent=recomputed.au_whole_percent,
        au_sustained_least_percent=run.au_sustained_least_percent,
        prefetch_credit_percent=run.prefetch_credit_percent,
        samples_per_second_printed=printed.samples_per_second,
        mib_per_second_printed=printed.mib_per_second,
        **{f"loss_{name}_percent": lost for name, lost in recomputed.loss_percent.items()},
        **(vars(recomputed.bounds) if recomputed.bounds else {}),
        errors=levels.count("error"),
        warnings=levels.count("warning"),
        findings="; ".join(f"{finding.severity} {finding.rule}: {finding.seen}" for finding in run.findings),
    )


def write_csv(path: str, row: type[Any], rows: Iterable[Any]) -> None:
    """Write rows, dataclasses of one type, as CSV below a line of column names; raises SpaceError."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, [column.name for column in fields(row)])
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    write_text(*os.path.split(path), lines.getvalue(), advice="name a file in a writable folder")
