"""The columns of pack.parquet: a row per packed file. Moments are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

PARTS = ("read", "compute", "write")
_TIMES = {"whole": "by the clock", "cpu": "on a core", "cpu_wait": "ready to run, without a core"}
COLUMNS = {
    "rank": "rank that packed it",
    "file": "number of the packed file",
    "began_ns": "when the rank began it",
    "ended_ns": "when all of it was on the device, under its name",
    "images": "images in it",
    "set_images": "images of the whole packed set, those of earlier runs included",
    "images_per_file": "images of each packed file but the last",
    "read_bytes": "bytes of its images' files",
    "written_bytes": "bytes of the packed file",
    "sample_bytes": "bytes of its samples, without what the format adds",
    "storage_bytes": "bytes fetched from storage for it, by the kernel's accounting",
    "cpu_ns": "CPU time of the rank",
} | {f"{part}_{key}_ns": f"time to {part}, {words}" for part in PARTS for key, words in _TIMES.items()}
