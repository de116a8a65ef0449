"""Saves an audit: one row per run as CSV or Parquet, and everything as audit.json for `dlemu report`."""

from __future__ import annotations

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import BinaryIO

from datagen.atomic import write_file
from dlemu.contrib.mlperf.audit.audit_answer import (
    AUDIT,
    AuditSummary,
    EpochFigures,
    PlacedRun,
    RunColumns,
    RunReport,
    SavedAudit,
)
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun
from dlemu.contrib.mlperf.audit.contradictions import Rulebook
from dlemu.results.answer_files import save_answer

TABLE = "audit.csv"


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
    low, high = recomputed.au_bounds_percent or (None, None)
    least, most = recomputed.rate_bounds or (None, None)
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
        au_least_percent=low,
        au_most_percent=high,
        samples_per_second_printed=printed.samples_per_second,
        samples_per_second_least=least,
        samples_per_second_most=most,
        mib_per_second_printed=printed.mib_per_second,
        **{f"loss_{name}_percent": lost for name, lost in recomputed.loss_percent.items()},
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


def saved_audit(runs: Sequence[AuditedRun], trees: Sequence[str], book: Rulebook | None) -> SavedAudit:
    """Return the content of audit.json."""
    placed = tuple(
        PlacedRun(**vars(run_report(run)), system=place.system, run=place.run)
        for run, place in zip(runs, places([run.path for run in runs]), strict=True)
    )
    return SavedAudit(
        folders=tuple(trees),
        edition=book.edition if book else None,
        division=book.division if book else None,
        summary=_summary(placed),
        runs=placed,
    )


def _summary(runs: Sequence[PlacedRun]) -> AuditSummary:
    exact = [run.au_difference_points for run in runs if run.basis == "steps"]
    differences = [abs(points) for points in exact if points is not None]
    first_step_losses = [run.loss_first_step_percent for run in runs if run.loss_first_step_percent is not None]
    return AuditSummary(
        runs=len(runs),
        systems=len({run.system for run in runs}),
        runs_with_errors=sum(bool(run.errors) for run in runs),
        runs_from_steps=sum(run.basis == "steps" for run in runs),
        runs_from_blocks=sum(run.from_blocks for run in runs),
        passed_printed=sum(run.verdict_printed == "success" for run in runs),
        passed_only_without_first_steps=sum("au.rules" in (found.rule for found in run.findings) for run in runs),
        largest_au_difference_points=max(differences, default=None),
        median_first_step_loss_percent=median(first_step_losses) if first_step_losses else None,
    )


def save_audit(folder: str, runs: Sequence[AuditedRun], trees: Sequence[str], book: Rulebook | None) -> None:
    """Write audit.json and audit.csv into a folder, which is created; raises SpaceError."""
    write_csv(os.path.join(folder, TABLE), runs)
    save_answer(folder, AUDIT, saved_audit(runs, trees, book))


def write_csv(path: str, runs: Sequence[AuditedRun]) -> None:
    """Write one line per run, below a line of column names; raises SpaceError."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, [column.name for column in fields(AuditRow)])
    writer.writeheader()
    writer.writerows(asdict(audit_row(run)) for run in runs)
    _replace(path, lambda out: out.write(lines.getvalue().encode()))


def write_parquet(path: str, runs: Sequence[AuditedRun]) -> None:
    """Write one row per run; raises SpaceError. Column types do not depend on the runs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([(column.name, kinds[str(column.type).split(" ")[0]]) for column in fields(AuditRow)])
    table = pa.Table.from_pylist([asdict(audit_row(run)) for run in runs], schema=schema)
    _replace(path, lambda out: pq.write_table(table, out, compression="zstd"))


def _replace(path: str, write: Callable[[BinaryIO], object]) -> None:
    folder, name = os.path.split(path)
    write_file(folder, name, write, advice="give a file in a writable folder")
