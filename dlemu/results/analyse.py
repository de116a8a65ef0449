"""From a run to its summary: one pure function makes every published number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlemu.results.summary import Summary

if TYPE_CHECKING:
    from dlemu.results.run import Run


def analyse(run: Run) -> Summary:
    """Return the summary of a run; of one that failed, of what was measured up to then, marked incomplete."""
    raise RuntimeError("under construction")
