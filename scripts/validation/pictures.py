"""The pictures of docs/sizing.md, made again by the page's own commands on known drives. Needs root.

    PYTHONPATH=scripts .venv/bin/python -m validation.pictures RESULTS      # about 15 minutes on an idle host

Searches that are finished in RESULTS are not run again. Then looks at each picture's size and prints what each search
found, which is what the page quotes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from measuring.runs import dlemu

from validation.drive import Speed, known_drive

DRIVES = {"drive-a": 80_000_000, "drive-b": 45_000_000}
"""Bytes/s of the two drives of the page."""
DRIVE_BYTES = 2 << 30
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MOST_BYTES = 150_000
QUESTION = ("workload=unet3d", "scale=laptop", "accelerator=h100")
SWEEP = (
    "ranks=1,2,3,4,5,6,7,8,9,10,12",
    "reader.evict_page_cache=epochs",
    "train.epochs=3",
    "train.total_training_steps=90",
    "metric.scaling_seconds=0",
    "workflow.checkpoint=false",
)
"""Of the first picture: every count on the first drive."""
WANTED = {
    "sweep-au": ("sweep", "by_count"),
    "compare-au": ("both", "by_count"),
}
"""Name of a picture -> the result it is of, and the figure."""


def find_size(name: str, bytes_per_second: int, results: Path) -> None:
    """Run `dlemu size --make` on a drive of this speed, once."""
    folder = results / name
    if (folder / "size.json").exists() and json.loads((folder / "size.json").read_text())["complete"]:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with known_drive(Speed(read_bytes_per_second=bytes_per_second), size_bytes=DRIVE_BYTES) as drive:
        asked = [*QUESTION, f"dataset.data_folder={drive.folder}/unet3d", "telemetry.interval_seconds=0.1"]
        subprocess.run(drive.command(dlemu("size", *asked, "--make", f"output.folder={folder}")), check=True)


def sweep(results: Path) -> None:
    """Run every count on the first drive, once."""
    if (results / "sweep" / "sweep.json").exists():
        return
    with known_drive(Speed(), size_bytes=DRIVE_BYTES) as drive:
        question = [*QUESTION, f"dataset.data_folder={drive.folder}/unet3d"]
        subprocess.run(dlemu("datagen", *question), check=True)
        drive.set_speed(Speed(read_bytes_per_second=DRIVES["drive-a"]))
        subprocess.run(drive.command(dlemu("sweep", *question, *SWEEP, f"output.folder={results}/sweep")), check=True)


def draw(results: Path) -> None:
    """Compare the drives, have every picture drawn, and keep those of the page."""
    shutil.rmtree(results / "both", ignore_errors=True)
    sides = [str(results / name) for name in DRIVES]
    subprocess.run(dlemu("compare", *sides, "--output", str(results / "both")), check=True)
    folders = {name: results / name for name in (*DRIVES, "both", "sweep")}
    for folder in folders.values():
        subprocess.run(dlemu("report", str(folder), "--svg"), check=True, capture_output=True)
    os.makedirs(PICTURES, exist_ok=True)
    for picture, (of, figure) in WANTED.items():
        made = folders[of] / "figures" / f"{figure}.svg"
        if made.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{made} has {made.stat().st_size} bytes, wanted at most {MOST_BYTES}")
        shutil.copy(made, PICTURES / f"{picture}.svg")


def main() -> None:
    """Search on both drives, then draw."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    results = Path(sys.argv[1]).absolute()
    for name, bytes_per_second in DRIVES.items():
        find_size(name, bytes_per_second, results)
    sweep(results)
    draw(results)
    for name in DRIVES:
        print(json.loads((results / name / "size.json").read_text())["verdict"])


if __name__ == "__main__":
    main()
