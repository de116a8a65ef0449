"""What an analysis found, as a code with its numbers; each kind of job turns them into sentences (`wording.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Literal, Self, TypeVar

Severity = Literal["info", "caution", "loud"]
"""`info`: a reason; `caution`: what a reader must know; `loud`: the numbers say something else than the storage."""
Confidence = Literal["high", "medium", "low"]
What = TypeVar("What", bound=str)
"""What a kind of job can be limited by: each kind has a Literal for it."""
Number = float | int | str | None
"""A number, whose unit is in its key, or the name of a host or folder; None: a number that is not finite (JSON)."""


class Code(StrEnum):
    """What can be found of a training, beside the shares of the lost time; other kinds of job share codes, or add some.

    What to do follows from the code: each kind of job has one table with a sentence for either (`wording.py`).
    """

    PREFETCH_TOO_SHALLOW = "prefetch_too_shallow"
    """Batches wait, in order, for one slow read, or for a worker that could have begun earlier."""
    REQUESTS_TOO_SMALL = "requests_too_small"
    """Larger read calls got more from the storage, right after the run."""
    TOO_FEW_READERS = "too_few_readers"
    TOO_MANY_READERS = "too_many_readers"
    """Fewer readers got more, right after the run."""
    OTHER_PROGRAM_ON_DRIVE = "other_program_on_drive"
    NETWORK_FULL = "network_full"
    STORAGE_NOT_STEADY = "storage_not_steady"
    """Its speed changed, it stalled, or its first bytes came faster or slower: `pattern` says which."""
    SLOW_DRIVE = "slow_drive"
    """A sub-folder of the dataset reads slower than the others."""
    SLOW_RANK = "slow_rank"
    """The others waited for a rank, or for a host where `rank` is null."""
    PAGE_CACHE = "page_cache"
    """Memory served some of the bytes, or that is not known."""
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
class LimitedBy(Generic[What]):
    """What limited a job, or a part of it."""

    what: What
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
