"""Stat calls as a kind of job."""

from __future__ import annotations

from dlemu.results.kinds import JobParts, Kind


def _parts() -> JobParts:
    from dlemu_stat.job import PARTS

    return PARTS


KIND = Kind(
    name="stat",
    noun="a run of stat calls",
    command="stat",
    help="Stat every file of a folder and say how long that takes.",
    usage="dlemu stat stat.folder=/mnt/nvme/files ranks=4",
    load=_parts,
    wants=lambda workload: "stat" in workload.kinds,
)
