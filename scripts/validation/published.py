"""Published runs of DLIO and published times of two drives, predicted from a part of what was published of each.

The folder `shared` beside the repository, or the one that DLEMU_PUBLISHED names, has `published-runs/RUN/...` as DLIO
leaves them and `seeds/kioxia_cm7.csv`. Nothing is measured.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.audited_run import audit_run, find_runs, shipped_pairs
from dlemu.contrib.mlperf.audit.foreign_times import foreign_run
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import Model
from validation.check import Check

FOLDER = Path(os.environ.get("DLEMU_PUBLISHED", Path(__file__).parents[3] / "shared"))
RUNS, DRIVES = "published-runs", os.path.join("seeds", "kioxia_cm7.csv")
AU_POINTS, FIRST_PERCENT, FASTER_POINTS = 1.0, 10.0, 2.5
EPOCHS = 5
KNOWN, OTHERS = 18, (17, 16, 8)
"""Accelerators of the time that each drive is known by, and those that are predicted."""


def why_no_published(folder: Path = FOLDER) -> str | None:
    """Return why it can't be predicted here, or None when it can."""
    missing = [name for name in (RUNS, DRIVES) if not (folder / name).exists()]
    return f"{' and '.join(missing)} are not in {folder}" if missing else None


def measure(_: object) -> Iterator[Check]:
    """Predict all of them."""
    yield from checks(FOLDER)


def checks(folder: Path) -> Iterator[Check]:
    """Hold each prediction against what was published."""
    for run in find_runs([str(folder / RUNS)]):
        yield from of_run(run)
    yield from of_drives(folder / DRIVES)


def of_run(folder: str) -> Iterator[Check]:
    """Predict a run's AU and first step from how long its epochs took: one number of each, which fixes neither."""
    known, audited = foreign_run(folder), audit_run(folder, shipped_pairs())
    assert known is not None
    case = os.path.basename(folder)
    asked = replace(known.workload, train=replace(known.workload.train, synchronous=True))
    of_epochs = predict(
        asked, calibrate_from_times(replace(known, first_seconds=())), ranks=known.ranks, hosts=known.hosts
    )
    printed = audited.printed.au_percent
    if printed is not None:
        yield Check(
            f"{case}, from its epochs' times",
            "au_dlio_v1, predicted",
            printed,
            of_epochs.au_dlio_v1_percent,
            "%",
            within=AU_POINTS,
        )
    if known.first_seconds:
        first = float(np.mean(known.first_seconds))
        yield Check(
            f"{case}, from its epochs' times",
            "first batch, predicted",
            first,
            of_epochs.time_to_first_batch_seconds,
            "s",
            within=FIRST_PERCENT,
            percent=True,
        )


def of_drives(path: Path) -> Iterator[Check]:
    """Predict by how much one drive is faster at other counts, each known by its time at one."""
    with open(path, newline="") as lines:
        rows = {row["item"]: row for row in csv.DictReader(lines)}
    words = ["workload=unet3d", "accelerator=v100", f"dataset.num_files_train={rows['dataset_files']['kioxia_cm7r']}"]
    workload = load([*words, "train.epochs=1", "workflow.checkpoint=false"])
    total = rows["total_time_18acc_5ep"]
    known = {drive: _known_by(workload, float(total[drive]) / EPOCHS) for drive in ("kioxia_cm7r", "vendor_a")}
    for count in OTHERS:
        fast, slow = (_seconds(workload, known[drive], count) for drive in ("kioxia_cm7r", "vendor_a"))
        yield Check(
            f"KIOXIA CM7-R and vendor A at {count}, from their times at {KNOWN}",
            "faster by, predicted",
            float(rows[f"faster_{count}acc_pct"]["kioxia_cm7r"]),
            100 * (1 - fast / slow),
            "%",
            within=FASTER_POINTS,
        )


def _known_by(workload: Workload, seconds: float) -> Calibration:
    """Return a drive whose epochs take so long with the accelerators that it is known by."""
    run = ForeignRun(folder="the document", workload=workload, ranks=KNOWN, hosts=1, epoch_seconds=(seconds,))
    return calibrate_from_times(run)


def _seconds(workload: Workload, known: Calibration, ranks: int) -> float:
    asked = replace(workload, train=replace(workload.train, synchronous=True))
    return Model(asked, known).run(ranks, most_rows=20_000).outcome.training_seconds
