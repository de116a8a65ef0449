"""Several jobs side by side."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="together",
    noun="concurrent jobs",
    marks=("together.json",),
    precedence=2,
    command="together",
    help="Run several jobs at the same time on one storage: what each costs the others.",
    read="run.read_together",
    result="run.Together",
    page="page.open_page",
)
