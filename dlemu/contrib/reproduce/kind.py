"""Declares reproduced documents as a kind of result, and imports its code on use."""

from __future__ import annotations

from dlemu.results.kinds import Kind, Parts


def _load() -> Parts:
    from dlemu.contrib.reproduce.page import PARTS

    return PARTS


KIND = Kind(
    name="reproduction",
    noun="a reproduced vendor document",
    answer="reproduce.json",
    command="reproduce",
    help="Reproduce the figures of a vendor's document on your storage.",
    load=_load,
)
