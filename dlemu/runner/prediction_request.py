"""How a prediction knows the storage, whatever kind of job it is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.runner.events import OnEvent, ignore


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """How the storage is known; of the first three one at most. Raises UserError for more."""

    from_folder: str | None = None
    """A run's folder, or one of an earlier prediction: its storage, and its settings where nothing else says them."""
    mb_per_second: float | None = None
    """A storage of so many 1e6 bytes/s; nothing is read."""
    drive: str | None = None
    """A storage as a data sheet (a YAML file) or a probe's folder has it; nothing is read."""
    hosts: int = 1
    """Ranks are spread over so many hosts like this one, which share the storage, or have one each."""
    others_mb_per_second: float = 0.0
    """1e6 bytes/s that other jobs take of the storage meanwhile, whatever this one is left with."""
    most: int | None = None
    """No more accelerators are predicted; None: as many as ends the search on a storage that no count fills."""
    cached: bool = False
    """The page cache may serve a probe."""
    config_dir: str | None = None
    """A folder with workload/NAME.yaml."""
    make: Callable[[Workload], None] | None = None
    """Makes what is missing of the workload's dataset before it is probed."""
    read_foreign: Callable[[str], Any] | None = None
    """Reads the folder of another benchmark's run; None where it holds none."""
    on_event: OnEvent = ignore
    """Is called with what goes on: what each number of readers of a probe got."""

    def __post_init__(self) -> None:
        given = {"--from": self.from_folder, "--mb-per-second": self.mb_per_second, "--drive": self.drive}
        described = [option for option, value in given.items() if value is not None]
        if len(described) > 1:
            raise UserError(f"{' and '.join(described)} each describe the storage: give only one of them")

    @property
    def describes_storage(self) -> bool:
        """Whether anything is known of the storage without measuring it."""
        return not (self.from_folder is None and self.mb_per_second is None and self.drive is None)
