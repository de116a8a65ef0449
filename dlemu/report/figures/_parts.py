"""Names, order and colours of the parts of time, the same in every figure."""

from __future__ import annotations

from dlemu.report.figures.figure_base import AMBER, BLUE, GREEN, GREY, PINK, PURPLE, RED, TEAL

PARTS = {
    "computing": (GREEN, "computing"),
    "first_step": (PINK, "first steps"),
    "reading": (RED, "reading"),
    "decoding": (AMBER, "decoding"),
    "queueing": (PURPLE, "queueing in the loader"),
    "hand_over": (TEAL, "hand-over"),
    "uneven_computation": (GREY, "uneven computation"),
    "sync": (BLUE, "sync"),
}
"""Part -> colour, and how it is called."""


def named(part: str) -> str:
    """Return how a part is called; a new one by its own name."""
    return PARTS[part][1] if part in PARTS else part.replace("_", " ")


def colour(part: str) -> str:
    """Return a part's colour."""
    return PARTS[part][0] if part in PARTS else GREY
