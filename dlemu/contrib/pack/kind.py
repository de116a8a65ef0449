"""Packings as a kind of result."""

from __future__ import annotations

from dlemu.results.kinds import Kind, Parts


def _pack() -> Parts:
    from dlemu.contrib.pack.page import PARTS

    return PARTS


KIND = Kind(
    name="pack",
    noun="a packing",
    marks=("pack.json",),
    command="pack",
    help="Pack images into a few large files, and report what limits it.",
    load=_pack,
)
