"""`dlemu size` against truth: on drives of known speed it must find floor(bandwidth / (threshold x demand)).

    PYTHONPATH=scripts .venv/bin/python -m validation.sizes [NUMBER...]      # needs root; about a minute a case

Prints a table in Markdown. The demand is that of the bytes really read, which are the files' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError
from validation.drive import KnownDrive, Speed, known_drive

DRIVE_BYTES = 2 << 30
DATA_BYTES = 1_300_000_000
THRESHOLD = 0.9
DLEMU = (sys.executable, "-m", "dlemu")


@dataclass(frozen=True)
class Case:
    """One question to `dlemu size`."""

    mb_per_second: int
    record_bytes: int = 250_000
    batch_size: int = 4
    step_seconds: float = 0.1
    read_threads: int = 2
    odirect: bool = False

    @property
    def data_words(self) -> list[str]:
        """Overrides that say what the dataset is."""
        return [
            "workload=default",
            "dataset.format=npz",
            f"dataset.record_length_bytes={self.record_bytes}",
            f"dataset.num_files_train={DATA_BYTES // self.record_bytes}",
        ]

    @property
    def words(self) -> list[str]:
        """Overrides of the question."""
        return [
            *self.data_words,
            f"reader.batch_size={self.batch_size}",
            f"reader.read_threads={self.read_threads}",
            f"reader.odirect={str(self.odirect).lower()}",
            "reader.file_shuffle=seed",
            f"train.computation_time={self.step_seconds}",
            f"metric.au={THRESHOLD}",
            "metric.ceiling_seconds=1",
        ]


CASES = (
    Case(35),
    Case(52),
    Case(62),
    Case(80),
    Case(95, odirect=True),
    Case(48, odirect=True, read_threads=4),
    Case(60, read_threads=1),
    Case(110, batch_size=8),
    Case(70, record_bytes=1_000_000, batch_size=1),
    Case(130, record_bytes=1_000_000, batch_size=2, odirect=True),
)


def ask(case: Case, drive: KnownDrive) -> dict[str, Any]:
    """Return the size.json of a case; its dataset is made when it is not there."""
    folder = f"dataset.data_folder={drive.folder}/{case.record_bytes}"
    subprocess.run([*DLEMU, "datagen", *case.data_words, folder], check=True, capture_output=True)
    drive.set_speed(Speed(read_bytes_per_second=case.mb_per_second * 1_000_000))
    with tempfile.TemporaryDirectory() as results:
        question = [*DLEMU, "size", *case.words, folder, f"output.folder={results}/size"]
        ended = subprocess.run(drive.command(question), check=False, capture_output=True, text=True)
        if ended.returncode not in (0, 1):
            raise DlemuError(f"{' '.join(question)} ended with status {ended.returncode}: {ended.stderr}")
        with open(os.path.join(results, "size", "size.json")) as lines:
            answer: dict[str, Any] = json.load(lines)
    return answer


def wanted(case: Case, answer: dict[str, Any]) -> float:
    """Return bandwidth / (threshold x demand); its whole part is the truth."""
    demand = max(trial["mb_per_accelerator"] for trial in answer["trials"])
    return case.mb_per_second / (THRESHOLD * demand)


HEAD = (
    "drive, MB/s",
    "an accelerator's step of 0.1 s reads",
    "B / (0.9 d)",
    "found",
    "AU % there",
    "AU % of one more",
    "limited by",
    "trials",
    "time",
    "every count at full length",
)


def row(case: Case, answer: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a line of the table."""
    edge = [answer["edge"][side] for side in ("pass", "fail")]
    told = [f"{one['au_percent']:.1f} +- {one['half_width_percent']:.1f}" if one else "-" for one in edge]
    reads = f"{case.batch_size} x {case.record_bytes / 1e6:g} MB, {case.read_threads} threads"
    return (
        str(case.mb_per_second),
        f"{reads}, {'O_DIRECT' if case.odirect else 'page cache evicted'}",
        f"{wanted(case, answer):.2f}",
        str(answer["max_accelerators"]),
        *told,
        answer["limited_by"]["what"],
        str(len(answer["trials"])),
        f"{answer['seconds']:.0f} s",
        f"{answer['naive_seconds']:.0f} s",
    )


def main() -> None:
    """Ask the cases whose numbers are given, or all, and print the table."""
    cases = [CASES[int(number)] for number in sys.argv[1:]] or CASES
    print(_line(HEAD), _line(["---"] * len(HEAD)), sep="\n", flush=True)
    right = []
    with known_drive(Speed(), size_bytes=DRIVE_BYTES) as drive:
        for case in cases:
            answer = ask(case, drive)
            right.append(answer["max_accelerators"] == int(wanted(case, answer)))
            print(_line(row(case, answer)), flush=True)
    print(f"\n{sum(right)} of {len(right)} are exact.")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
