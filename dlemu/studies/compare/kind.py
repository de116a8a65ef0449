"""Two storages beside each other."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="comparison",
    noun="a comparison",
    marks=("compare.json", "compare_checkpoints.json"),
    command="compare",
    help="Put two runs, sweeps or searches beside each other.",
    read="page.read_comparison",
    result="page.Comparison",
    page="page.open_page",
)
