"""`dlemu size` on drives of known speed: it must find floor(bandwidth / (threshold x demand)).

The demand is computed from the bytes that are really read, whole files. A case takes two minutes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import run
from measuring import evidence
from measuring.runs import dlemu, run_job, section

from validation.bed import Bed
from validation.check import Check
from validation.drive import KnownDrive, Speed

DATA_BYTES = 1_300_000_000
THRESHOLD = 0.9


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
    def dataset_settings(self) -> list[str]:
        """Settings of the dataset."""
        return [
            "workload=default",
            *section("dataset", format="npz", record_length_bytes=self.record_bytes),
            *section("dataset", num_files_train=DATA_BYTES // self.record_bytes),
        ]

    @property
    def text(self) -> str:
        """The reads, for the table."""
        mode = "O_DIRECT" if self.odirect else "page cache evicted"
        return f"{self.batch_size} x {self.record_bytes / 1e6:g} MB, {self.read_threads} threads, {mode}"

    @property
    def settings(self) -> list[str]:
        """Settings of dataset, reader and accelerators."""
        return [
            *self.dataset_settings,
            *section("reader", batch_size=self.batch_size, read_threads=self.read_threads, odirect=self.odirect),
            *section("reader", file_shuffle="seed"),
            f"train.computation_time={self.step_seconds}",
            *section("metric", au=THRESHOLD, ceiling_seconds=1),
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
    """Return the size.json of a case. Makes its dataset unless it exists, and removes others, to make room."""
    for other in os.listdir(drive.folder):
        if other.isdigit() and other != str(case.record_bytes):
            shutil.rmtree(os.path.join(drive.folder, other))
    folder = f"dataset.data_folder={drive.folder}/{case.record_bytes}"
    run(dlemu("datagen", *case.dataset_settings, folder))
    drive.set_speed(Speed(read_bytes_per_second=case.mb_per_second * 1_000_000))
    with tempfile.TemporaryDirectory() as results:
        return run_job("size", [*case.settings, folder], within=results, wrap=drive.command, result="size.json").summary


def wanted(case: Case, answer: dict[str, Any]) -> float:
    """Return bandwidth / (threshold x demand), whose integer part is the truth."""
    demand = max(trial["mb_per_accelerator"] for trial in answer["trials"])
    return case.mb_per_second / (THRESHOLD * demand)


@dataclass(frozen=True)
class Answer(evidence.Row):
    """A case and its answer, as a row of the evidence."""

    case: Case
    answer: dict[str, Any]
    columns = (
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

    @property
    def off(self) -> int:
        """Error, in accelerators."""
        return abs(self.answer["max_accelerators"] - int(wanted(self.case, self.answer)))

    @property
    def times_faster(self) -> float:
        return float(self.answer["naive_seconds"] / self.seconds)

    @property
    def seconds(self) -> float:
        """Time of all trials."""
        return float(sum(trial["seconds"] for trial in self.answer["trials"]))

    @property
    def status(self) -> str:
        return "for information" if self.off else "ok"

    @property
    def cells(self) -> list[str]:
        answer = self.answer
        counts = {count["accelerators"]: count for count in answer["counts"]}
        edge = [counts.get(answer["max_accelerators"] + more) for more in (0, 1)]
        return [
            str(self.case.mb_per_second),
            self.case.text,
            f"{wanted(self.case, answer):.2f}",
            str(answer["max_accelerators"]),
            *(f"{at['au_sustained_percent']:.1f} +- {at['half_width_percent']:.1f}" if at else "-" for at in edge),
            answer["limited_by"]["what"],
            str(len(answer["trials"])),
            f"{self.seconds:.0f} s",
            f"{answer['naive_seconds']:.0f} s, {self.times_faster:.0f} times as long",
        ]


def measure(bed: Bed) -> Iterator[Answer | Check]:
    """Answer every case. One in ten may be off by one, and each may take a fifth of the time of full-length runs."""
    answers = []
    for case in CASES:
        answers.append(Answer(case, ask(case, bed.drive)))
        yield answers[-1]
    yield from verdict(answers)


def verdict(answers: Sequence[Answer]) -> Iterator[Check]:
    """Check the errors and times of all answers."""
    errors = [answer.off for answer in answers]
    exact = 100 * errors.count(0) / len(errors)
    yield Check("all", "exact", 100.0, exact, "%", within=10)
    yield Check("all", "off by", 0.0, float(max(errors)), "accelerators", within=1)
    share = 100 / min(answer.times_faster for answer in answers)
    yield Check("all", "time, of every count at full length", 0.0, share, "%", within=20)
