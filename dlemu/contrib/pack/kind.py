"""Declares packing as a kind of result: its command, and where its parts are."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="pack",
    noun="a packing",
    marks=("pack.json",),
    command="pack",
    help="Pack images into a few large files, and report what limits it.",
    read="run.read_pack",
    result="result.PackAnswer",
    page="page.open_page",
)
