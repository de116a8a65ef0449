"""`dlemu size` against truth: on drives of known speed it must find floor(bandwidth / (threshold x demand)).

    PYTHONPATH=scripts .venv/bin/python -m validation.sizes [--table PAGE] [NUMBER...]     # root; 2 minutes a case

Runs by itself: a case that fails is noted and the others go on. Prints a table in Markdown, and writes it into a page
such as docs/validation.md. The demand is that of the bytes really read, which are the files' own. Exit status: 0 all
but one in ten are exact, that one is off by one, and all took a fifth of the naive way's time or less; else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from datagen.errors import DlemuError
from dlemu.metrics.verdict import COMPLETED
from validation import table
from validation.drive import KnownDrive, Speed, known_drive

DRIVE_BYTES = 2 << 30
DATA_BYTES = 1_300_000_000
THRESHOLD = 0.9
CASE_SECONDS = 1800.0
"""Far beyond what a search takes, on a busy host too."""
DLEMU = (sys.executable, "-m", "dlemu")
_GROUP = "sizes"
"""What its table is called on a page."""


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
    def text(self) -> str:
        """What it reads and how, for the table."""
        how = "O_DIRECT" if self.odirect else "page cache evicted"
        return f"{self.batch_size} x {self.record_bytes / 1e6:g} MB, {self.read_threads} threads, {how}"

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
    """Return the size.json of a case; its dataset is made when it is not there. The drive has room for one."""
    for other in os.listdir(drive.folder):
        if other.isdigit() and other != str(case.record_bytes):
            shutil.rmtree(os.path.join(drive.folder, other))
    folder = f"dataset.data_folder={drive.folder}/{case.record_bytes}"
    made = subprocess.run([*DLEMU, "datagen", *case.data_words, folder], check=False, capture_output=True, text=True)
    if made.returncode:
        raise DlemuError(f"no dataset was made: {made.stderr}")
    drive.set_speed(Speed(read_bytes_per_second=case.mb_per_second * 1_000_000))
    with tempfile.TemporaryDirectory() as results:
        question = [*DLEMU, "size", *case.words, folder, f"output.folder={results}/size"]
        ended = subprocess.run(
            drive.command(question), check=False, capture_output=True, text=True, timeout=CASE_SECONDS
        )
        if ended.returncode not in COMPLETED:
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
    "a step of 0.1 s reads",
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
    edge_au = [f"{side['au_percent']:.1f} +- {side['half_width_percent']:.1f}" if side else "-" for side in edge]
    return (
        str(case.mb_per_second),
        case.text,
        f"{wanted(case, answer):.2f}",
        str(answer["max_accelerators"]),
        *edge_au,
        answer["limited_by"]["what"],
        str(len(answer["trials"])),
        f"{answer['seconds']:.0f} s",
        f"{answer['naive_seconds']:.0f} s, {answer['naive_seconds'] / answer['seconds']:.0f} times as long",
    )


@dataclass
class Tally:
    """Results so far."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    offs: list[int] = field(default_factory=list)
    """By how many accelerators each answer is off."""
    speedups: list[float] = field(default_factory=list)
    failed: int = 0

    def measure(self, case: Case, drive: KnownDrive) -> None:
        """Ask one case; one that fails is a row that says so."""
        try:
            answer = ask(case, drive)
        except (DlemuError, subprocess.SubprocessError) as error:
            self.failed += 1
            self.rows.append((str(case.mb_per_second), case.text, *["-"] * (len(HEAD) - 2)))
            print(f"{case}: {error}", file=sys.stderr, flush=True)
        else:
            self.rows.append(row(case, answer))
            self.offs.append(abs(answer["max_accelerators"] - int(wanted(case, answer))))
            self.speedups.append(answer["naive_seconds"] / answer["seconds"])
        print(_line(self.rows[-1]), flush=True)

    @property
    def holds(self) -> bool:
        """Whether it is as wanted."""
        missed = sum(off > 0 for off in self.offs)
        return not self.failed and 10 * missed <= len(self.offs) and max(self.offs) <= 1 and min(self.speedups) >= 5

    @property
    def summary(self) -> str:
        """The same in words."""
        exact = sum(off == 0 for off in self.offs)
        text = f"{exact} of {len(self.rows)} are exact, the others off by {max(self.offs, default=0)} at most."
        text = text if exact < len(self.offs) else f"{exact} of {len(self.rows)} are exact."
        if self.failed:
            text += f" {self.failed} could not be measured."
        if self.speedups:
            least, most = min(self.speedups), max(self.speedups)
            text += f" Every count up to the edge at full length takes {least:.0f} to {most:.0f} times as long."
        return f"{text} {date.today()}, {table.machine()}."


def main() -> int:
    """Ask the cases whose numbers are given, or all; return the exit status."""
    asked = arguments(sys.argv[1:])
    print(_line(HEAD), _line(["---"] * len(HEAD)), sep="\n", flush=True)
    tally = Tally()
    with known_drive(Speed(), size_bytes=DRIVE_BYTES) as drive:
        for case in asked.cases or CASES:
            tally.measure(case, drive)
    print(f"\n{tally.summary}")
    if asked.table:
        lines = [tally.summary, "", _line(HEAD), _line(["---"] * len(HEAD)), *map(_line, tally.rows)]
        table.put(asked.table, _GROUP, "\n".join(lines))
    return 0 if tally.holds else 1


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Return `cases`, empty for all, and `table`."""
    parser = argparse.ArgumentParser(prog="validation.sizes", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", type=_case, metavar="NUMBER", help=f"0 to {len(CASES) - 1}; without: all")
    parser.add_argument("--table", metavar="PAGE", help="write the table into this page, such as docs/validation.md")
    asked = parser.parse_args(words)
    table.check_argument(parser, asked.table, [_GROUP])
    return asked


def _case(number: str) -> Case:
    try:
        return dict(enumerate(CASES))[int(number)]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"no case {number}: wanted 0 to {len(CASES) - 1}") from None


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
