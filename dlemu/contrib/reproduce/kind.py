"""A vendor's document, reproduced."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="reproduction",
    noun="a reproduced vendor document",
    marks=("reproduce.json",),
    command="reproduce",
    help="Reproduce the figures of a vendor's document on your storage.",
    read="run.read_reproduced",
    result="run.Reproduced",
    page="page.open_page",
)
