"""The input (`Facts`) and the outcome (`Check`) of a check of the host; `dlemu.cli.doctor` prints the outcomes."""

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

Level = Literal["ok", "skip", "warn", "fail"]  # skip: a setting turns the check off


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check. `wanted` and `advice` are empty if nothing needs to change."""

    name: str = ""  # set by `outcomes`
    level: Level = "ok"
    observed: str
    wanted: str = ""
    advice: str = ""


def outcome(failed: bool, observed: str, wanted: str, advice: str, *, level: Level = "warn") -> Check:
    """Return the outcome of a check that `failed`: `level`, with what is wanted and advice; of one that did not: ok."""
    return Check(level=level, observed=observed, wanted=wanted, advice=advice) if failed else Check(observed=observed)


@dataclass(frozen=True)
class Facts:
    """The workload, and facts of this host that several checks use; each is looked up once, on first use."""

    workload: Workload

    @cached_property
    def demand(self) -> Demand:
        """What one accelerator needs from the storage."""
        return demand(self.workload.model.name, self.workload)

    @cached_property
    def storage(self) -> StorageBase:
        """The dataset's storage, read through the page cache; raises UserError for an unknown type of storage."""
        return open_storage(self.workload.storage_spec.buffered)

    @cached_property
    def folder(self) -> str | None:
        """The dataset's folder, or the nearest one above it that exists; None if the storage has no local folders."""
        path = self.storage.local_path(self.workload.dataset.data_folder)
        return None if path is None else existing_folder(path)

    @cached_property
    def _dataset_or_error(self) -> Dataset | DlemuError | None:
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
        """The dataset, None if it does not exist yet; raises DlemuError if it can't be used."""
        if isinstance(self._dataset_or_error, DlemuError):
            raise self._dataset_or_error
        return self._dataset_or_error

    @property
    def usable_dataset(self) -> Dataset | None:
        """The dataset if a run can read it, else None."""
        return None if isinstance(self._dataset_or_error, DlemuError) else self._dataset_or_error


Checks = Mapping[str, Callable[[Facts], Check | None]]  # name of a check -> function; returns None if not applicable
