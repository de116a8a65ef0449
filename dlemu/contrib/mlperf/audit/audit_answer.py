"""What an audit answers: a row of each run for tables and CSV, a report of each for JSON, and how runs are listed."""

from __future__ import annotations

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.audit.recompute import FORMULAS
from dlemu.contrib.mlperf.rules.known import Finding


@dataclass(frozen=True, kw_only=True)
class RunColumns:
    """Columns of a run in tables; None where not known. docs/audit.md explains them."""

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
    """Total computation over total time of all epochs together, no step dropped."""
    au_sustained_percent: float | None = None
    """AU that an endless epoch would have; for dlemu's own runs."""
    au_sustained_least_percent: float | None = None
    """The least AU that the storage sustains; for other runs."""
    prefetch_credit_percent: float | None = None
    """Share of the counted steps' batches that was read before these steps; an upper bound except for dlemu's runs."""
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
    loss_all_other_percent: float | None = None
    """All loss but that of first steps, where step times were not kept."""
    errors: int
    warnings: int = 0

    @property
    def from_blocks(self) -> bool:
        """Whether block times gave a number: without the settings they give none."""
        return self.basis == "blocks" and (self.au_whole_percent, self.samples_per_second_dlio_v1) != (None, None)

    @property
    def sustained_percent(self) -> tuple[float | None, bool]:
        """The sustained AU, and whether that is a lower bound."""
        least = self.au_sustained_least_percent
        return (self.au_sustained_percent, False) if least is None else (least, True)

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


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """AU and samples/s of each epoch."""

    au_percent: tuple[float | None, ...]
    samples_per_second: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class RunReport(RunColumns):
    """A run with the numbers of each epoch and its findings, for `--json`."""

    findings: tuple[Finding, ...]
    au_threshold_percent: float | None = None
    epochs_printed: EpochFigures | None = None
    epochs_recomputed: Mapping[str, EpochFigures] = field(default_factory=dict)
    """Formula -> numbers of each epoch."""


@dataclass(frozen=True, kw_only=True)
class AuditRow(RunColumns):
    """One run as a row of a table."""

    findings: str


def audit_row(run: AuditedRun) -> AuditRow:
    """Return a run as a row of a table."""
    texts = [f"{finding.severity} {finding.rule}: {finding.seen}" for finding in run.findings]
    return AuditRow(**vars(_columns(run)), findings="; ".join(texts))


def run_report(run: AuditedRun) -> RunReport:
    """Return a run with the numbers of each epoch and its findings."""
    printed = run.printed
    return RunReport(
        **vars(_columns(run)),
        findings=run.findings,
        au_threshold_percent=run.setup.au_threshold_percent,
        epochs_printed=EpochFigures(
            au_percent=printed.au_by_epoch, samples_per_second=printed.samples_per_second_by_epoch
        ),
        epochs_recomputed={
            name: EpochFigures(
                au_percent=_finite(by.au_by_epoch), samples_per_second=_finite(by.samples_per_second_by_epoch)
            )
            for name, by in run.recomputed.formulas.items()
        },
    )


def _columns(run: AuditedRun) -> RunColumns:
    setup, printed, recomputed = run.setup, run.printed, run.recomputed
    levels = [finding.severity for finding in run.findings]
    return RunColumns(
        path=run.path,
        workload=setup.workload or printed.model,
        accelerator=setup.accelerator,
        accelerators=printed.accelerators or recomputed.ranks_kept or None,
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
        au_sustained_percent=run.prefetch.sustained_percent,
        au_sustained_least_percent=run.prefetch.sustained_least_percent,
        prefetch_credit_percent=run.prefetch.credit_percent,
        samples_per_second_printed=printed.samples_per_second,
        mib_per_second_printed=printed.mib_per_second,
        **{f"loss_{name}_percent": lost for name, lost in recomputed.loss_percent.items()},
        **(vars(recomputed.bounds) if recomputed.bounds else {}),
        errors=levels.count("error"),
        warnings=levels.count("warning"),
    )


def _finite(values: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in values)


@dataclass(frozen=True)
class Place:
    """How a run is listed: the name of its system, and its own name there."""

    parent: str
    """The folder of the system, which holds all its runs; may be empty for the current folder."""
    system: str
    """`parent`, relative to the deepest folder above all systems."""
    run: str
    """The run's folder below `parent`."""


def places(paths: Sequence[str]) -> list[Place]:
    """Return the place of each run. A system is a folder that holds several runs, or else the folder above that one."""
    siblings = Counter(os.path.dirname(path) for path in paths)
    top, listed = common_folder(paths), []
    for path in paths:
        parent = os.path.dirname(path)
        above = os.path.dirname(parent)
        if siblings[parent] == 1 and above and above != parent:
            parent = above
        folder = parent or os.curdir
        listed.append(Place(parent, os.path.relpath(folder, top), os.path.relpath(path, folder)))
    return listed


def common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder above all systems; `.` where there is none."""
    above = [os.path.dirname(os.path.dirname(path)) or os.curdir for path in paths]
    return os.path.commonpath(above) if len({os.path.isabs(path) for path in above}) == 1 else os.curdir


def csv_of(row: type[Any], rows: Iterable[Any]) -> str:
    """Return rows, dataclasses of one type, as CSV below a line of column names."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, [column.name for column in fields(row)])
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    return lines.getvalue()
