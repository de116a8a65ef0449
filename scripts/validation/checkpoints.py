"""Checkpoints on a drive of known speed: throughput, limit, prediction, and the AU with asynchronous checkpoints."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from measuring.runs import section

import dlemu
from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed

MB = 1_000_000
WRITE_MB, READ_MB = 80, 60
RANKS, ASYNCHRONOUS_RANKS = 4, 2
SHAPE = (
    "workload=llama3_8b",
    "model.transformer.hidden_size=256",
    "model.transformer.ffn_hidden_size=896",
    "model.transformer.vocab_size=8016",
    "checkpoint.odirect=true",
    "metric.ceiling_seconds=0",
)
"""A checkpoint of 0.44 GB: at these speeds, a burst of the throttle (100 ms) is at most 2 % of it."""


def measure(bed: Bed) -> Iterator[Check]:
    """Check written and read checkpoints; then asynchronous ones, with more and with less training than they take."""
    speed = Speed(write_bytes_per_second=WRITE_MB * MB, read_bytes_per_second=READ_MB * MB)
    summary = bed.checkpoint(*SHAPE, f"ranks={RANKS}", *_numbers(2, 2, 0), speed=speed)
    answer = predicted_from_sheet()
    for phase, limit in (("write", WRITE_MB), ("read", READ_MB)):
        case = f"{RANKS} ranks {phase} 2 x 0.44 GB, direct"
        rate = 1000 * summary[phase]["wall_gb_per_second"]
        yield Check(case, "throughput", limit, rate, "MB/s", within=2, percent=True)
        yield Check(case, "limited by", "storage", summary[phase]["limited_by"]["what"])
        predicted, took = getattr(answer, phase).seconds, summary[phase]["slowest_seconds"]
        yield Check(case, "predicted from a data sheet", predicted, took, "s", within=2, percent=True)
    drain = summary["bytes"] / (WRITE_MB * MB)
    for compute in (1.5 * drain, 0.5 * drain):
        settings = ("checkpoint.asynchronous=true", "checkpoint.snapshot_gb_per_second=0.5")
        done = bed.checkpoint(*SHAPE, f"ranks={ASYNCHRONOUS_RANKS}", *settings, *_numbers(3, 0, compute), speed=speed)
        yield _asynchronous(done, compute, drain)


def predicted_from_sheet() -> Any:
    """Return the CheckpointPrediction of `dlemu predict` for a drive whose data sheet has these speeds."""
    with tempfile.TemporaryDirectory() as folder:
        sheet = os.path.join(folder, "sheet.yaml")
        lines = [
            f"{kind}: [{{size: 1m, depth: 4, mb_per_second: {speed}}}]\n"
            for kind, speed in (("reads", READ_MB), ("writes", WRITE_MB))
        ]
        with open(sheet, "w") as file:
            file.writelines(lines)
        settings = [*SHAPE, f"ranks={RANKS}", f"output.folder={folder}/predicted"]
        return dlemu.predict(settings, drive=sheet)


def _numbers(writes: int, reads: int, seconds: float) -> list[str]:
    return [
        *section(
            "checkpoint", num_checkpoints_write=writes, num_checkpoints_read=reads, time_between_checkpoints=seconds
        )
    ]


def _asynchronous(summary: Mapping[str, Any], compute: float, drain: float) -> Check:
    """Check the AU, T / (S + max(T, D)): training computes for T, and waits for the snapshot S and the drain D."""
    measured = summary["asynchronous"]
    theory = 100 * compute / (measured["snapshot_seconds"] + max(compute, drain))
    case = f"asynchronous, {compute:.1f} s of training, {drain:.1f} s to drain"
    return Check(case, "AU", theory, measured["au_percent"], "%", within=2)
