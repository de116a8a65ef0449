"""Published runs of DLIO and published times of two drives, predicted from a part of what was published of each.

    PYTHONPATH=scripts .venv/bin/python -m validation.published [--folder FOLDER] [--table docs/prediction.md]

FOLDER (by default `shared` beside the repository) has `published-runs/RUN/...` as DLIO leaves them and
`seeds/kioxia_cm7.csv`. `scripts/validate published` does the same. Nothing is measured, so nothing needs root.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.mlperf.audit.audited_run import audit_run, find_runs, shipped_pairs
from dlemu.mlperf.foreign_times import foreign_run
from dlemu.prediction.calibration import Calibration
from dlemu.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.prediction.make_prediction import predict
from dlemu.prediction.model_run import Model
from validation import table
from validation.bed import Bed
from validation.check import Check

FOLDER = Path(__file__).parents[3] / "shared"
RUNS, DRIVES = "published-runs", os.path.join("seeds", "kioxia_cm7.csv")
GROUP = "published"
AU_POINTS, FIRST_PERCENT, FASTER_POINTS = 1.0, 10.0, 2.5
EPOCHS = 5
KNOWN, OTHERS = 18, (17, 16, 8)
"""Accelerators of the time that each drive is known by, and those that are predicted."""


def why_no_published(folder: Path = FOLDER) -> str | None:
    """Return why it can't be predicted here, or None when it can."""
    missing = [name for name in (RUNS, DRIVES) if not (folder / name).exists()]
    return f"{' and '.join(missing)} are not in {folder}" if missing else None


def measure(_: Bed) -> Iterator[Check]:
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
            case=f"{case}, from its epochs' times", what="au_dlio_v1, predicted", theory=printed,
            measured=of_epochs.au_dlio_v1_percent, unit="%", within=AU_POINTS,
        )  # fmt: skip
    if known.first_seconds:
        first = float(np.mean(known.first_seconds))
        yield Check(
            case=f"{case}, from its epochs' times", what="first batch, predicted", theory=first,
            measured=of_epochs.time_to_first_batch_seconds, unit="s", within=FIRST_PERCENT, percent=True,
        )  # fmt: skip


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
            case=f"KIOXIA CM7-R and vendor A at {count}, from their times at {KNOWN}", what="faster by, predicted",
            theory=float(rows[f"faster_{count}acc_pct"]["kioxia_cm7r"]), measured=100 * (1 - fast / slow), unit="%",
            within=FASTER_POINTS,
        )  # fmt: skip


def _known_by(workload: Workload, seconds: float) -> Calibration:
    """Return a drive whose epochs take so long with the accelerators that it is known by."""
    run = ForeignRun(folder="the document", workload=workload, ranks=KNOWN, hosts=1, epoch_seconds=(seconds,))
    return calibrate_from_times(run)


def _seconds(workload: Workload, known: Calibration, ranks: int) -> float:
    asked = replace(workload, train=replace(workload.train, synchronous=True))
    return Model(asked, known).run(ranks, most_rows=20_000).outcome.training_seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is predicted of what was published; return the exit status."""
    parser = argparse.ArgumentParser(prog="validation.published", description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"default: {FOLDER.name} beside the repository")
    parser.add_argument("--table", metavar="PAGE", help="write the table into this page, such as docs/prediction.md")
    asked = parser.parse_args(arguments)
    table.check_argument(parser, asked.table, [GROUP])
    reason = why_no_published(asked.folder)
    if reason:
        print(f"{GROUP}: skipped: {reason}")
        return 0
    made = []
    for check in checks(asked.folder):
        made.append(check)
        print(table.line(check), flush=True)
    if asked.table:
        held = sum(check.holds for check in made)
        table.put(asked.table, GROUP, markdown(made, f"{held} of {len(made)} hold. {date.today()}."))
    return 0 if all(check.holds for check in made) else 1


def markdown(made: Sequence[Check], top: str) -> str:
    """Return the checks as a table: published is what the others call theory."""
    head = ["from what", "predicted", "published", "predicted value", "off", "verdict"]
    rows = []
    for check in made:
        case, what, theory, measured, off, _, verdict = check.cells
        rows.append([case, what.removesuffix(", predicted"), theory, measured, off, verdict])
    return "\n".join([top, "", *(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])])


if __name__ == "__main__":
    sys.exit(main())
