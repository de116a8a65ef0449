"""Two storages side by side."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="comparison",
    noun="a comparison",
    marks=("compare.json",),
    command="compare",
    help="Compare two runs, sweeps or searches.",
    read="page.read_comparison",
    result="page.Comparison",
    page="page.open_page",
)
