"""The search for the most accelerators."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="size",
    noun="a search",
    marks=("size.json",),
    precedence=2,
    command="size",
    help="Find the most accelerators that this storage keeps busy.",
    read="points.read_size",
    result="points.SizeAnswer",
    points="points.points",
)
