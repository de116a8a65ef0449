"""Declares the probe as a kind of result: its command, and where its parts are."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="probe",
    noun="a probe",
    marks=("probe.json",),
    command="probe",
    help="Measure what a storage can deliver: MB/s, IOPS and latency by size and depth.",
    read="run.read_probe",
    result="result.ProbeAnswer",
    page="page.open_page",
    rates="run.read_rates",
)
