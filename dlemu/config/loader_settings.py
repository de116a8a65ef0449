"""What the configuration needs from a loader: which settings change something with it, and what it can't do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from datagen.errors import UserError
from datagen.registry import built_in, companion
from dlemu.config.schema import Workload

LOADERS = "dlemu.loaders"


class SettingTraits(Protocol):
    """The part of a loader's traits that is about settings; the folder of loaders is above this room."""

    def settings_used(self, dataset_format: str) -> Collection[str]:
        """Return those settings that matter to few loaders which change something with this one."""

    def reads_files(self, dataset_format: str) -> bool:
        """Return whether the loader itself opens and reads files of a format."""

    def problems(self, workload: Workload) -> list[str]:
        """Return what is required of the loader that it can't do."""


def settings_used(
    data_loader: str, dataset_format: str, engine: str, *, direct: bool = False, received: bool = False
) -> Collection[str]:
    """Return those settings that matter to few loaders which change something with this one and `reader.engine`.

    Past the page cache (`direct`) no library's calls are made, so how large they are can be set.

    A loader that can't be found is named as a problem, not here. The module of somebody's own loader is not imported
    for a configuration that was `received`.
    """
    transfers = "reader.transfer_size"
    traits: type[SettingTraits] | None
    try:
        traits = (built_in if received else companion)(LOADERS, data_loader, "Traits", None)
    except UserError:
        return ()
    loader = None if traits is None else traits()
    used = (transfers,) if loader is None else loader.settings_used(dataset_format)
    by_library = engine == "library" or (engine == "matched" and not direct)
    if by_library and not (loader and loader.reads_files(dataset_format)):
        return [key for key in used if key != transfers]
    return used


def loader_problems(workload: Workload) -> list[str]:
    """Return what is required of the loader that it can't do; raises UserError where there is no such loader."""
    traits: type[SettingTraits] | None = companion(LOADERS, workload.reader.data_loader, "Traits")
    return [] if traits is None else traits().problems(workload)
