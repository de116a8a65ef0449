"""Declares packing as a kind of job, and imports its code on use."""

from __future__ import annotations

from dlemu.results.kinds import JobParts, Kind


def _load() -> JobParts:
    from dlemu.contrib.pack.page import PARTS

    return PARTS


KIND = Kind(
    name="pack",
    noun="a packing run",
    command="pack",
    help="Pack images into a few large files, and report what limits the rate.",
    usage="""Pack images: read, decode, rescale, encode and write them, with as many processes as ranks.

    \b
    dlemu pack  pack.source=/mnt/images pack.target=/mnt/packed ranks=8 pack.resize=256 pack.encode=jpeg
    dlemu pack  workload=colfax scale=laptop pack.target=/mnt/packed ranks=8 pack.resize=256x256
    dlemu sweep workload=colfax scale=laptop drives=/mnt/ssd,/mnt/disk ranks=1,2,4,8 pack.resize=256x256

    The source is a folder of images with any names (jpeg, png, tiff; without resize, files of any type), or a
    workload's dataset, which `dlemu datagen` makes. Packed files stay, and a line says how to train on them; a sweep
    removes those of each point. When interrupted, the same command continues. Figures and limits: docs/packing.md.
    """,
    load=_load,
    wants=lambda workload: bool(workload.kinds.get("pack")),
)
