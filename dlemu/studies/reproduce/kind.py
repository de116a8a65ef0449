"""A vendor's document, made again."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="reproduction",
    noun="a vendor's document made again",
    marks=("reproduce.json",),
    command="reproduce",
    help="Make the figures of a vendor's document on your storage.",
    read="run.read_reproduced",
    result="run.Reproduced",
    page="page.open_page",
)
