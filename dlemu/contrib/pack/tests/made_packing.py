"""A packing of two drives, without running it."""

from __future__ import annotations

from dataclasses import replace

from dlemu.contrib.pack.result import PackAnswer, PackFigures, PackLimit, PackPoint, PackQuestion, PackShares

DRIVES = ("/mnt/new", "/mnt/old")


def packing(axis: str) -> PackAnswer:
    figures_of = PackFigures(
        images=8,
        processes=4,
        files=2,
        images_per_file=4,
        seconds=2.0,
        images_per_second=4.0,
        read_bytes=8 * 23_000_000,
        written_bytes=100,
        read_mb_per_second=92.0,
        write_mb_per_second=1.0,
        cpu_seconds=1.0,
        cpu_percent=25.0,
        cpu_seconds_per_gb=5.0,
        shares=PackShares(reading=50, computing=20, wanting_core=10, writing=10, idle=10),
        limited_by=PackLimit(what="storage", confidence="medium", advice="faster_storage_to_read"),
    )

    def by(value: str) -> PackFigures:
        return (
            replace(figures_of, processes=int(value)) if axis == "processes" else replace(figures_of, images=int(value))
        )

    points = tuple(
        PackPoint(settings={axis: value, "dataset.data_folder": f"{drive}/colfax"}, folder="p", figures=by(value))
        for value in ("4", "8")
        for drive in DRIVES
    )
    return PackAnswer(complete=True, question=PackQuestion(overrides=(), settings_digest=""), points=points)
