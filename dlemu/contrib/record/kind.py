"""Recorded jobs as a kind of result."""

from __future__ import annotations

from dlemu.results.kinds import Kind, Parts


def _record() -> Parts:
    from dlemu.contrib.record.page import PARTS

    return PARTS


KIND = Kind(
    name="record",
    noun="a recorded job",
    answer="record.json",
    precedence=2,
    command="record",
    help="Record a training job of your own as a workload: what it reads, computes and waits for.",
    load=_record,
)
