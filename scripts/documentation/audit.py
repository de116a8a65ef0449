"""The list of an audit's columns, from the type of its rows."""

from __future__ import annotations

import textwrap
from dataclasses import fields

from dlemu.contrib.mlperf.audit.audit_answer import AuditRow

COLUMNS_BEGIN = "<!-- made by scripts/docs from the row of an audit -->"


def columns() -> str:
    """Return the names of all columns, in order."""
    return textwrap.fill(", ".join(f"`{field.name}`" for field in fields(AuditRow)), 100) + ".\n"
