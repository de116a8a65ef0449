"""Several jobs beside each other."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="together",
    noun="jobs beside each other",
    marks=("together.json",),
    precedence=2,
    command="together",
    help="Run several jobs beside each other on one storage: what each costs the others.",
    read="run.read_together",
    result="run.Together",
    page="page.open_page",
)
