"""Registers the result of `dlemu audit --report`, so that `dlemu report` recognises it."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="audit",
    noun="an audit",
    marks=("audit.json",),
    command="audit",
    help="Recompute the numbers of DLIO's and MLPerf Storage's result folders.",
    read="page.read_audit",
    result="audit_answer.SavedAudit",
    page="page.open_page",
)
