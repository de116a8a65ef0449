"""One run audited: read, recomputed, compared; and as one row of a table."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from dlemu.mlperf.audit.by_rules import Rulebook, rule_findings
from dlemu.mlperf.audit.compare import closest_formula, compare
from dlemu.mlperf.audit.formulas import DLIO_FORMULAS
from dlemu.mlperf.audit.from_blocks import from_blocks
from dlemu.mlperf.audit.logs import Logs, read_logs
from dlemu.mlperf.audit.printed import Printed, read_printed
from dlemu.mlperf.audit.recompute import NOTHING, Recomputed, from_steps
from dlemu.mlperf.audit.setup import Setup, Shipped, completed, read_setup
from dlemu.mlperf.finding import Finding

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """What is known of one run folder."""

    path: str
    setup: Setup
    printed: Printed
    recomputed: Recomputed
    printed_by: str | None
    """The formula that gives the printed numbers, or comes closest."""
    findings: tuple[Finding, ...]
    by_dlemu: bool = False
    """Whether dlemu ran in DLIO's place, as the run's log says."""


def audit_run(folder: str, shipped: Shipped, book: Rulebook | None = None) -> AuditedRun:
    """Return what one run folder holds, recomputed and compared. Whatever is wrong with its files is a finding.

    With a rulebook the run is also held against that edition's rules.
    """
    findings: list[Finding] = []
    setup = read_setup(folder, shipped, findings)
    printed = read_printed(folder, findings)
    logs = read_logs(folder, _names(folder, findings), printed.start, findings)
    setup = completed(setup, shipped, workload=printed.model, step_seconds=_configured_seconds(logs), findings=findings)
    found = NOTHING
    if _trained(printed, logs):
        found = from_steps(setup, printed.accelerators, logs)
        found = from_blocks(setup, printed, logs) if found is NOTHING else found
        findings += compare(setup, printed, logs, found)
        findings += rule_findings(setup, printed, book) if book else []
    else:
        findings = [one for one in findings if not one.rule.startswith("config.")]  # they matter to training alone
        findings.append(_no_training(printed))
    return AuditedRun(
        path=folder,
        setup=setup,
        printed=printed,
        recomputed=found,
        printed_by=closest_formula(printed, found),
        findings=tuple(findings),
        by_dlemu=logs.by_dlemu,
    )


def _names(folder: str, findings: list[Finding]) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        seen = f"the folder can't be listed: {error.strerror}"
        findings.append(Finding("error", "file.broken", seen, "a folder that may be read", "give the right to read it"))
        return []


def _trained(printed: Printed, logs: Logs) -> bool:
    return printed.au_percent is not None or printed.samples_per_second is not None or bool(logs.blocks())


def _no_training(printed: Printed) -> Finding:
    if printed.checkpoints or printed.foreign:
        fix = "nothing: the audit is of training"
        seen = "a run of checkpoints alone" if printed.checkpoints else "the summary of another kind of benchmark"
        return Finding("info", "no.training", seen, "a training run", fix)
    seen = "a run of dlemu that did not complete" if printed.ours else "no training in its files"
    return Finding("error", "no.training", seen, "a training run that ended", "see the run's log for why it ended")


def _configured_seconds(logs: Logs) -> float | None:
    """Return the configured time of a step when the arrays hold it and it is the same in all of them."""
    if logs.measured_compute:
        return None
    kept = [np.unique(one.compute) for blocks in logs.arrays.values() for one in blocks.values()]
    values = np.unique(np.concatenate(kept)) if kept else np.empty(0)
    return float(values[0]) if len(values) == 1 else None


LOSS_PARTS = ("first_step", "load", "oversleep", "barrier", "slower_rank", "all_other")
"""What the loss is split into; `all_other` is everything but the first step where steps were not kept."""


def row(run: AuditedRun) -> dict[str, Cell]:
    """Return the run as one row of a table: always the same columns, None for what is not known."""
    setup, printed, found = run.setup, run.printed, run.recomputed
    low, high = found.au_bounds_percent or (None, None)
    least, most = found.rate_bounds or (None, None)
    levels = [finding.severity for finding in run.findings]
    return {
        "path": run.path,
        "workload": setup.workload or printed.model,
        "accelerator": setup.accelerator,
        "accelerators": printed.accelerators or found.ranks_kept or None,
        "hosts": printed.hosts,
        "epochs": found.epochs or printed.epochs or setup.epochs,
        "steps_per_epoch": found.steps_per_epoch,
        "basis": found.basis,
        "ranks_kept": found.ranks_kept,
        "verdict_printed": printed.verdict,
        "printed_by": run.printed_by,
        "au_printed_percent": printed.au_percent,
        **{f"au_{name}_percent": _au(found, name) for name in DLIO_FORMULAS},
        "au_rules_percent": found.au_rules_percent,
        "au_least_percent": low,
        "au_most_percent": high,
        "samples_per_second_printed": printed.samples_per_second,
        **{f"samples_per_second_{name}": _rate(found, name) for name in DLIO_FORMULAS},
        "samples_per_second_least": least,
        "samples_per_second_most": most,
        "mib_per_second_printed": printed.mib_per_second,
        **{f"loss_{name}_percent": found.loss_percent.get(name) for name in LOSS_PARTS},
        "errors": levels.count("error"),
        "warnings": levels.count("warning"),
        "findings": "; ".join(f"{one.severity} {one.rule}: {one.seen}" for one in run.findings),
    }


def _au(found: Recomputed, name: str) -> float | None:
    return found.formulas[name].au_percent if name in found.formulas else None


def _rate(found: Recomputed, name: str) -> float | None:
    return found.formulas[name].samples_per_second if name in found.formulas else None


def failed_run(folder: str, error: Exception) -> AuditedRun:
    """Return a run whose audit itself failed: a fault of dlemu's, told with the run."""
    seen = f"the audit failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finding = Finding("error", "audit.failed", seen, "an audit of any folder", "report it with the folder's files")
    return AuditedRun(
        path=folder, setup=Setup(), printed=Printed(), recomputed=NOTHING, printed_by=None, findings=(finding,)
    )
