"""The answer of an audit: a row for each run in tables and CSV, and a report on each run for JSON."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.audit.recompute import Formula
from dlemu.contrib.mlperf.audit.run_settings import Printed
from dlemu.extend import write_text


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One run as a row of a table; unknown values are None. docs/audit.md explains the columns."""

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
    def au_recomputed_percent(self) -> float | None:
        """AU by the formula that comes closest to the printed numbers; None without one."""
        value: float | None = getattr(self, f"au_{self.printed_by}_percent", None)
        return value

    @property
    def samples_per_second_recomputed(self) -> float | None:
        """Samples/s by the formula that comes closest to the printed numbers; None without one."""
        value: float | None = getattr(self, f"samples_per_second_{self.printed_by}", None)
        return value


def run_report(run: AuditedRun) -> dict[str, Any]:
    """Return a run's row, findings and numbers of each epoch, for `--json`."""
    keys = ("severity", "rule", "seen", "wanted", "fix")
    return asdict(audit_row(run)) | {
        "findings": [{key: vars(finding)[key] for key in keys} for finding in run.findings],
        "au_threshold_percent": run.setup.au_threshold_percent,
        "epochs_printed": _epochs(run.printed),
        "epochs_recomputed": {name: _epochs(formula) for name, formula in run.recomputed.formulas.items()},
    }


def _epochs(figures: Printed | Formula) -> dict[str, list[float | None]]:
    by_epoch = {"au_percent": figures.au_by_epoch, "samples_per_second": figures.samples_per_second_by_epoch}
    return {key: [value if math.isfinite(value) else None for value in values] for key, values in by_epoch.items()}


def audit_row(run: AuditedRun) -> AuditRow:
    setup, printed, recomputed = run.setup, run.printed, run.recomputed
    severities = [finding.severity for finding in run.findings]
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
        **{f"au_{name}_percent": formula.au_percent for name, formula in recomputed.formulas.items()},
        **{f"samples_per_second_{name}": formula.samples_per_second for name, formula in recomputed.formulas.items()},
        au_whole_percent=recomputed.au_whole_percent,
        samples_per_second_printed=printed.samples_per_second,
        mib_per_second_printed=printed.mib_per_second,
        **{f"loss_{name}_percent": percent for name, percent in recomputed.loss_percent.items()},
        **(vars(recomputed.bounds) if recomputed.bounds else {}),
        errors=severities.count("error"),
        warnings=severities.count("warning"),
        findings="; ".join(f"{finding.severity} {finding.rule}: {finding.seen}" for finding in run.findings),
    )


def write_csv(path: str, row: type[Any], rows: Iterable[Any]) -> None:
    """Write rows, which are dataclasses of type `row`, as CSV with a header; raises SpaceError."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, [column.name for column in fields(row)])
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    write_text(*os.path.split(path), lines.getvalue(), advice="name a file in a writable folder")
