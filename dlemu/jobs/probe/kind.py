"""Registers probes as a kind of result."""

from __future__ import annotations

from dlemu.results.kinds import Kind, Parts


def _probe() -> Parts:
    from dlemu.jobs.probe.page import PARTS

    return PARTS


KIND = Kind(
    name="probe",
    noun="a probe",
    answer="probe.json",
    command="probe",
    help="Measure what a storage can deliver: MB/s, IOPS and latency by size and depth.",
    load=_probe,
)
