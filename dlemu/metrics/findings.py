"""Findings of an analysis, as codes with numbers; each kind of job words them in sentences (`wording.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Literal, Self, TypeVar

Severity = Literal["info", "caution", "loud"]
"""`info`: an explanation; `caution`: restricts the numbers; `loud`: the numbers are not those of the storage."""
Confidence = Literal["high", "medium", "low"]
CauseT = TypeVar("CauseT", bound=str)  # the causes that can limit a kind of job: each kind has a Literal of them
Number = float | int | str | None
"""A number, whose unit is in its key, or a name of a host or folder; None for a number that is not finite (JSON)."""


class Code(StrEnum):
    """Codes of findings about training, besides the shares of the lost time. Other kinds of job use some, or add codes.

    The advice follows from the code: each kind of job has a table of sentences for findings and advice (`wording.py`).
    """

    PREFETCH_TOO_SHALLOW = "prefetch_too_shallow"
    """Batches, which are used in order, wait for one slow read, or for a worker that could have begun earlier."""
    REQUESTS_TOO_SMALL = "requests_too_small"
    """Larger read calls reached a higher rate right after the run."""
    TOO_FEW_READERS = "too_few_readers"
    TOO_MANY_READERS = "too_many_readers"
    """Fewer readers reached a higher rate right after the run."""
    OTHER_PROGRAM_ON_DRIVE = "other_program_on_drive"
    NETWORK_FULL = "network_full"
    STORAGE_NOT_STEADY = "storage_not_steady"
    """Its speed changed, it stalled, or its first bytes came faster or slower, by `pattern`."""
    SLOW_DRIVE = "slow_drive"
    """A sub-folder of the dataset reads slower than the others."""
    SLOW_RANK = "slow_rank"
    """The others waited for a rank; if `rank` is null, for a host."""
    PAGE_CACHE = "page_cache"
    """Memory served some of the bytes, or may have."""
    NO_DATA_FROM_STORAGE = "no_data_from_storage"
    """Nothing was read, or the dataset is on a `file_system` in memory."""
    MEMORY_PRESSURE = "memory_pressure"
    CPU_QUOTA = "cpu_quota"
    """The CPU limit (cgroup) was used up."""
    OTHER_PROGRAM_ON_CORES = "other_program_on_cores"
    EMULATOR_CEILING = "emulator_ceiling"
    """The emulator reaches hardly more without storage."""
    MEASUREMENT_INCOMPLETE = "measurement_incomplete"
    """Steps or telemetry of a host are lost."""


@dataclass(frozen=True)
class Finding:
    """One thing found. Codes are stable, sentences may change from version to version."""

    code: str
    severity: Severity = "info"
    numbers: dict[str, Number] = field(default_factory=dict)
    """Name with unit -> value: `loss_percent`, `readers`. Where a code has several forms, `pattern` says which."""

    @classmethod
    def of(cls, code: str, severity: Severity = "info", **numbers: Number) -> Self:
        return cls(code, severity, numbers)


@dataclass(frozen=True, kw_only=True)
class LimitedBy(Generic[CauseT]):
    """What limited a job, or a part of it."""

    what: CauseT
    confidence: Confidence | None = None
    """How sure that is; None where nothing that was measured names it."""
    evidence: tuple[str, ...] = ()
    """What shows it, as sentences; the job makes them."""
    advice: tuple[str, ...] = ()
    """What to do, as sentences."""

    @property
    def name(self) -> str:
        """The cause with its confidence, as text."""
        return f"{self.what} (confidence {self.confidence})" if self.confidence else str(self.what)
