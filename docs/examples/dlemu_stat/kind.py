"""Stat calls as a kind of job."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="stat",
    noun="a run of stat calls",
    command="stat",
    help="Stat every file of a folder and say how long that takes.",
    usage="dlemu stat stat.folder=/mnt/nvme/files ranks=4",
    wants=lambda workload: "stat" in workload.kinds,
    job="job.STAT",
    read="job.read",
    summary="job.read_summary",
    show="page.print_summary",
    page="page.open_page",
    metrics="metrics.CATALOGUE",
    figures="metrics.figures",
    conditions="metrics.conditions",
)
