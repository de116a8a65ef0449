"""The parts common to predictions of all kinds of jobs: options (storage, hosts, limits) and fields of the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.metrics.findings import Finding
from dlemu.results.answer_files import Answer
from dlemu.results.drive import Rates
from dlemu.results.kinds import kind_of
from dlemu.results.parts import OutcomeField
from dlemu.runner.events import OnEvent, ignore


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """Options of a prediction. The first three each describe a storage; raises UserError if more than one is given."""

    from_folder: str | None = None
    """Folder of a run or an earlier prediction: supplies the storage, and all settings that are not given otherwise."""
    mb_per_second: float | None = None
    """Throughput of a hypothetical storage, in 1e6 bytes/s; nothing is read."""
    drive: str | Rates | None = None
    """A data sheet (YAML file), a probe's folder, or the storage's rates from either; nothing is read."""
    hosts: int | None = None
    """Number of hosts like this one that share the storage; by default 1, or without a storage 1 per 8 accelerators."""
    host_cores: int | None = None
    """Cores of each host, assumed to be as fast as those measured; by default as many as were measured on."""
    others_mb_per_second: float = 0.0
    """MB/s (1e6 bytes) of the storage that other jobs use meanwhile, even if this job then gets too little."""
    most: int | None = None
    """Maximum number of accelerators to predict for; by default large enough to bound the search."""
    restart_minutes: float = 5.0
    """Minutes in which all ranks are to read a checkpoint; used without a storage."""
    config_dir: str | None = None
    """A folder with workload/NAME.yaml."""
    make: Callable[[Workload], None] | None = None
    """Makes missing files of the workload's dataset before it is probed."""
    read_foreign: Callable[[str], Any] | None = None
    """Reads another benchmark's run from a folder; returns None if there is none."""
    on_event: OnEvent = ignore
    """Called with events, such as the throughput of each number of readers in a probe."""

    def __post_init__(self) -> None:
        descriptions = {"--from": self.from_folder, "--mb-per-second": self.mb_per_second, "--drive": self.drive}
        options = [option for option, value in descriptions.items() if value is not None]
        if len(options) > 1:
            raise UserError(f"{' and '.join(options)} each describe the storage: give only one of them")
        if self.from_folder is None or (kind := kind_of(self.from_folder)) is None:
            return
        rates = kind.load().rates
        if rates is not None:
            rates(self.from_folder)  # raises UserError for a folder without rates
            raise UserError(f"{self.from_folder} holds {kind.noun}, not a run or a prediction: give it as --drive")

    @property
    def describes_storage(self) -> bool:
        """Whether the storage is described, so that it need not be measured."""
        return any(option is not None for option in (self.from_folder, self.mb_per_second, self.drive))


@dataclass(frozen=True, kw_only=True)
class Predicted(OutcomeField, Answer):
    """What predictions of all kinds of jobs have alike."""

    source: str
    """What the speed of the storage is from, and what others are assumed to take of it, as a phrase."""
    findings: tuple[Finding, ...] = ()
    """What restricts the meaning of the prediction; `issues` says it in words."""
