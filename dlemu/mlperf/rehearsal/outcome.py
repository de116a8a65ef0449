"""The figures of the runs, and what all of them together show."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run showed."""

    au_dlio_percent: float
    """By DLIO's formula, as the edition's tool would print it: `train_au_mean_percentage`."""
    samples_per_second: float
    """By DLIO's formula."""
    mib_per_second: float
    """Nominal, as DLIO's MB/s: samples/s x record length."""
    au_threshold_percent: float
    au_percent: float | None
    """dlemu's headline AU, from the accelerators' own timeline."""
    ceiling_au_percent: float | None
    limited_by: str | None
    accelerators: int
    hosts: int
    memory_gib_per_host: float
    num_files: int
    samples_per_file: int
    start: str
    end: str

    @property
    def passed(self) -> bool:
        """Whether DLIO's AU reaches the threshold."""
        return self.au_dlio_percent >= self.au_threshold_percent


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measured runs together. Standard deviations are the population's, as report.py of v1.0 has them."""

    runs: int
    passed: int
    au_dlio_mean_percent: float
    au_dlio_std_percent: float
    samples_per_second_mean: float
    samples_per_second_std: float
    mib_per_second_mean: float
    mib_per_second_std: float
    au_mean_percent: float | None
    """dlemu's headline AU."""
    au_std_percent: float | None

    @property
    def cov_percent(self) -> float:
        """Coefficient of variation of samples/s."""
        return 100 * self.samples_per_second_std / self.samples_per_second_mean if self.samples_per_second_mean else 0.0


def read_figures(folder: str) -> Figures:
    """Read the figures of a finished run off its folder."""
    own, told = _json(os.path.join(folder, "summary.json")), _json(os.path.join(folder, "dlio", "summary.json"))
    metric, metrics = told["metric"], own["metrics"]
    return Figures(
        au_dlio_percent=metric["train_au_mean_percentage"],
        samples_per_second=metric["train_throughput_mean_samples_per_second"],
        mib_per_second=metric["train_io_mean_MB_per_second"],
        au_threshold_percent=metrics["au_threshold_percent"],
        au_percent=(metrics.get("au_percent") or {}).get("mean"),
        ceiling_au_percent=metrics.get("ceiling_au_percent"),
        limited_by=(own.get("limited_by") or {}).get("what"),
        accelerators=told["num_accelerators"],
        hosts=told["num_hosts"],
        memory_gib_per_host=told["host_memory_GB"][0],
        num_files=told["num_files_train"],
        samples_per_file=told["num_samples_per_file"],
        start=told["start"],
        end=told["end"],
    )


def sum_up(measured: Sequence[Figures]) -> Outcome:
    """Return what the measured runs show together; there is at least one."""
    own = [one.au_percent for one in measured if one.au_percent is not None]
    whole = len(own) == len(measured)
    au, rate = [one.au_dlio_percent for one in measured], [one.samples_per_second for one in measured]
    mib = [one.mib_per_second for one in measured]
    return Outcome(
        runs=len(measured),
        passed=sum(one.passed for one in measured),
        au_dlio_mean_percent=float(np.mean(au)),
        au_dlio_std_percent=float(np.std(au)),
        samples_per_second_mean=float(np.mean(rate)),
        samples_per_second_std=float(np.std(rate)),
        mib_per_second_mean=float(np.mean(mib)),
        mib_per_second_std=float(np.std(mib)),
        au_mean_percent=float(np.mean(own)) if whole else None,
        au_std_percent=float(np.std(own)) if whole else None,
    )


def _json(path: str) -> dict[str, Any]:
    with open(path) as lines:
        found: dict[str, Any] = json.load(lines)
    return found
