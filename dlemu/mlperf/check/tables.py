"""What a check found as plain data and as CSV, a line a finding."""

from __future__ import annotations

import csv
import io
import os
from typing import Any

from dlemu.mlperf.check.model import Checked, Located, Result

COLUMNS = ("severity", "rule", "official", "path", "seen", "wanted", "fix")


def row(one: Located, root: str) -> dict[str, str]:
    """Return a finding's columns; its path begins at the root."""
    found = one.finding
    path = os.path.relpath(one.path, root)
    texts = (found.severity, found.rule, one.official or "", path, found.seen, found.wanted, found.fix)
    return dict(zip(COLUMNS, texts, strict=True))


def as_csv(checked: Checked) -> str:
    """Return all findings, a line each, below one of names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(row(one, checked.root) for one in checked.findings)
    return text.getvalue()


def plain(checked: Checked) -> dict[str, Any]:
    """Return the check as plain data, for programs."""
    return {
        "root": checked.root,
        "valid": checked.valid,
        "rehearsal": checked.rehearsal is not None,
        "errors": checked.count("error"),
        "warnings": checked.count("warning"),
        "results": [_result(one, checked.root) for one in checked.results],
        "findings": [row(one, checked.root) for one in checked.findings],
    }


def _result(result: Result, root: str) -> dict[str, Any]:
    first = next((leaf for leaf in result.runs if leaf.run), None)
    return {
        "path": os.path.relpath(result.path, root),
        "edition": result.edition.name,
        "division": result.division,
        "workload": first.setup.workload if first else None,
        "accelerator": first.setup.accelerator if first else None,
        "accelerators": first.printed.accelerators if first else None,
        "runs": [leaf.name for leaf in result.runs],
    }
