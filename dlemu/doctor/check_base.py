"""The input (`Facts`) and the outcome (`Check`) of a check of the host. Both are data: nothing here prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from datagen.errors import DlemuError
from datagen.inspection import Dataset, inspect
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.config import datagen_command
from dlemu.config.schema import Workload
from dlemu.machine.environment import existing_folder
from dlemu.metrics.demand import Demand, demand

Level = Literal["ok", "skip", "warn", "fail"]
"""`skip`: settings switch the check off."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check. `wanted` and `advice` are empty where nothing needs to change."""

    name: str = ""
    """Given by `examine`."""
    level: Level = "ok"
    observed: str
    wanted: str = ""
    advice: str = ""


def judged(bad: bool, observed: str, wanted: str, advice: str, *, level: Level = "warn") -> Check:
    """Return the outcome of a check: if `bad`, with this level, and what is wanted and advised; else ok."""
    return Check(level=level, observed=observed, wanted=wanted, advice=advice) if bad else Check(observed=observed)


@dataclass(frozen=True)
class Facts:
    """The workload, and facts of this host that several checks use: looked up once, when first needed."""

    workload: Workload

    @cached_property
    def demand(self) -> Demand:
        """What one accelerator needs from the storage."""
        return demand(self.workload.model.name, self.workload)

    @cached_property
    def storage(self) -> StorageBase:
        """The storage of the dataset, read through the page cache; raises UserError for an unknown storage type."""
        return open_storage(self.workload.storage_spec.buffered)

    @cached_property
    def folder(self) -> str | None:
        """The dataset's folder, or the nearest one above it that exists; None for a storage without local folders."""
        local = self.storage.local_path(self.workload.dataset.data_folder)
        return None if local is None else existing_folder(local)

    @cached_property
    def _inspected(self) -> Dataset | DlemuError | None:
        workload = self.workload
        try:
            if not self.storage.is_folder(workload.dataset.data_folder):
                return None
            storage = workload.storage_spec.buffered
            return inspect(workload.dataset, command_hint=lambda: datagen_command(workload), storage=storage)
        except DlemuError as error:
            return error

    @property
    def dataset(self) -> Dataset | None:
        """The dataset, None when there is none yet; raises DlemuError if it can't be used."""
        if isinstance(self._inspected, DlemuError):
            raise self._inspected
        return self._inspected

    @property
    def usable_dataset(self) -> Dataset | None:
        """The dataset if a run could read it, else None."""
        return None if isinstance(self._inspected, DlemuError) else self._inspected


Checks = Mapping[str, Callable[[Facts], Check | None]]
"""Name of each check -> function; None where it does not apply."""
