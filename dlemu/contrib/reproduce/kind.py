"""Reproduced documents as a kind of result."""

from __future__ import annotations

from dlemu.results.kinds import Kind, Parts


def _reproduced() -> Parts:
    from dlemu.contrib.reproduce.page import PARTS

    return PARTS


KIND = Kind(
    name="reproduction",
    noun="a reproduced vendor document",
    answer="reproduce.json",
    command="reproduce",
    help="Reproduce the figures of a vendor's document on your storage.",
    load=_reproduced,
)
