"""A whole audit as a folder: audit.json for programs and `dlemu report`, audit.csv for spreadsheets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from dlemu import __version__
from dlemu.mlperf.audit.by_rules import Rulebook
from dlemu.mlperf.audit.places import places
from dlemu.mlperf.audit.run import AuditedRun
from dlemu.mlperf.audit.tables import plain, write_csv, write_json

SCHEMA_VERSION = 1
AUDIT, TABLE = "audit.json", "audit.csv"


def save_audit(folder: str, runs: Sequence[AuditedRun], trees: Sequence[str], book: Rulebook | None) -> None:
    """Write both files into a folder, which is made; raises SpaceError."""
    write_csv(os.path.join(folder, TABLE), runs)
    write_json(os.path.join(folder, AUDIT), saved(runs, trees, book))


def saved(runs: Sequence[AuditedRun], trees: Sequence[str], book: Rulebook | None) -> dict[str, Any]:
    """Return what audit.json holds."""
    found = [plain(run) for run in runs]
    for one, place in zip(found, places([run.path for run in runs]), strict=True):
        one |= {"system": place.system, "run": place.run}
    return {
        "schema_version": SCHEMA_VERSION,
        "dlemu_version": __version__,
        "folders": list(trees),
        "edition": book.edition if book else None,
        "division": book.division if book else None,
        "summary": _summary(found),
        "runs": found,
    }


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    exact = [one for one in runs if one["basis"] == "steps" and one["printed_by"]]
    apart = [abs(one[f"au_{one['printed_by']}_percent"] - one["au_printed_percent"]) for one in exact if _au(one)]
    first = [one["loss_first_step_percent"] for one in runs if one["loss_first_step_percent"] is not None]
    return {
        "runs": len(runs),
        "systems": len({one["system"] for one in runs}),
        "runs_with_errors": sum(bool(one["errors"]) for one in runs),
        "runs_from_steps": sum(one["basis"] == "steps" for one in runs),
        "runs_from_blocks": sum(one["basis"] == "blocks" for one in runs),
        "passed_printed": sum(one["verdict_printed"] == "success" for one in runs),
        "passed_only_without_first_steps": sum(_has(one, "au.rules") for one in runs),
        "largest_au_difference_points": max(apart, default=None),
        "median_first_step_loss_percent": median(first) if first else None,
    }


def _au(run: Mapping[str, Any]) -> bool:
    return run["au_printed_percent"] is not None and run[f"au_{run['printed_by']}_percent"] is not None


def _has(run: Mapping[str, Any], rule: str) -> bool:
    return any(finding["rule"] == rule for finding in run["findings"])
