"""Types of audit.json, which `dlemu audit --report` writes and `dlemu report` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from dlemu import __version__
from dlemu.results.answer_files import ANSWER_VERSION
from dlemu.results.finding import Finding

AUDIT = "audit.json"
FORMULAS = ("dlio_v1", "dlio", "dlio_v3", "dlio_fork")
"""Formulas of AU and samples/s by versions of DLIO (docs/audit.md), as named in columns."""


@dataclass(frozen=True, kw_only=True)
class RunColumns:
    """Columns of a run in tables; None where not known. docs/audit.md explains them."""

    path: str
    workload: str | None = None
    accelerator: str | None = None
    accelerators: int | None = None
    hosts: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    basis: str
    ranks_kept: int = 0
    verdict_printed: str | None = None
    printed_by: str | None
    au_printed_percent: float | None = None
    au_dlio_v1_percent: float | None = None
    au_dlio_percent: float | None = None
    au_dlio_v3_percent: float | None = None
    au_dlio_fork_percent: float | None = None
    au_whole_percent: float | None = None
    """Total computation over total time of all epochs together, no step dropped."""
    au_sustained_percent: float | None = None
    """AU that an endless epoch would have; for dlemu's own runs."""
    au_sustained_least_percent: float | None = None
    """The least AU that the storage sustains; for other runs."""
    prefetch_credit_percent: float | None = None
    """Share of the counted steps' batches that was read before these steps; an upper bound except for dlemu's runs."""
    au_least_percent: float | None = None
    au_most_percent: float | None = None
    samples_per_second_printed: float | None = None
    samples_per_second_dlio_v1: float | None = None
    samples_per_second_dlio: float | None = None
    samples_per_second_dlio_v3: float | None = None
    samples_per_second_dlio_fork: float | None = None
    samples_per_second_least: float | None = None
    samples_per_second_most: float | None = None
    mib_per_second_printed: float | None = None
    loss_first_step_percent: float | None = None
    loss_load_percent: float | None = None
    loss_oversleep_percent: float | None = None
    loss_barrier_percent: float | None = None
    loss_slower_rank_percent: float | None = None
    loss_all_other_percent: float | None = None
    """All loss but that of first steps, where step times were not kept."""
    errors: int
    warnings: int = 0

    @property
    def from_blocks(self) -> bool:
        """Whether block times gave a number: without the settings they give none."""
        return self.basis == "blocks" and (self.au_whole_percent, self.samples_per_second_dlio_v1) != (None, None)

    @property
    def sustained_percent(self) -> tuple[float | None, bool]:
        """The sustained AU, and whether that is a lower bound."""
        least = self.au_sustained_least_percent
        return (self.au_sustained_percent, False) if least is None else (least, True)

    @property
    def au_recomputed_percent(self) -> float | None:
        """AU by the formula that comes closest to the printed numbers."""
        value: float | None = getattr(self, f"au_{self.printed_by}_percent") if self.printed_by in FORMULAS else None
        return value

    @property
    def samples_per_second_recomputed(self) -> float | None:
        """Samples/s by the formula that comes closest to the printed numbers."""
        column = f"samples_per_second_{self.printed_by}"
        value: float | None = getattr(self, column) if self.printed_by in FORMULAS else None
        return value

    @property
    def au_difference_points(self) -> float | None:
        """Recomputed minus printed AU."""
        recomputed, printed = self.au_recomputed_percent, self.au_printed_percent
        return recomputed - printed if recomputed is not None and printed is not None else None

    @property
    def rate_difference_percent(self) -> float | None:
        """By how many percent the recomputed samples/s exceed the printed ones."""
        recomputed, printed = self.samples_per_second_recomputed, self.samples_per_second_printed
        return 100 * (recomputed / printed - 1) if recomputed is not None and printed else None

    @property
    def loss_percent(self) -> dict[str, float | None]:
        """Cause -> lost time, in percent of the time of all blocks."""
        return {
            "first_step": self.loss_first_step_percent,
            "load": self.loss_load_percent,
            "oversleep": self.loss_oversleep_percent,
            "slower_rank": self.loss_slower_rank_percent,
            "barrier": self.loss_barrier_percent,
            "all_other": self.loss_all_other_percent,
        }


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """AU and samples/s of each epoch."""

    au_percent: tuple[float | None, ...]
    samples_per_second: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class RunReport(RunColumns):
    """A run with the numbers of each epoch and its findings."""

    findings: tuple[Finding, ...]
    au_threshold_percent: float | None = None
    epochs_printed: EpochFigures | None = None
    epochs_recomputed: Mapping[str, EpochFigures] = field(default_factory=dict)
    """Formula -> numbers of each epoch."""


@dataclass(frozen=True, kw_only=True)
class PlacedRun(RunReport):
    """A run with the names under which it is listed."""

    system: str
    run: str

    @property
    def kind(self) -> str:
        """Workload and accelerator: `unet3d h100`."""
        return " ".join(filter(None, (self.workload, self.accelerator))) or "workload unknown"

    @property
    def name(self) -> str:
        """System and run."""
        return os.path.normpath(os.path.join(self.system, self.run))


@dataclass(frozen=True, kw_only=True)
class AuditSummary:
    """Counts and statistics of all runs of an audit."""

    runs: int
    systems: int
    runs_with_errors: int
    runs_from_steps: int
    runs_from_blocks: int
    passed_printed: int
    passed_only_without_first_steps: int
    largest_au_difference_points: float | None = None
    """Between printed and recomputed AU, of the runs recomputed from all steps."""
    median_first_step_loss_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class SavedAudit:
    """Content of audit.json."""

    schema_version: int = ANSWER_VERSION
    dlemu_version: str = __version__
    folders: tuple[str, ...] = ()
    edition: str | None = None
    division: str | None = None
    summary: AuditSummary
    runs: tuple[PlacedRun, ...]
