"""What the configuration needs to know of a loader: which settings affect it, and what it can't do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from datagen.errors import UserError
from datagen.registry import built_in, companion
from dlemu.config.schema import Workload

LOADERS = "dlemu.loaders"


class SettingTraits(Protocol):
    """The part of a loader's traits that concerns settings, as this package may not import dlemu.loaders."""

    def settings_used(self, dataset_format: str) -> Collection[str]:
        """Return which of the settings that only some loaders use (OF_SOME_LOADERS) affect this one."""

    def reads_files(self, dataset_format: str) -> bool:
        """Return whether the loader itself opens and reads files of a format."""

    def problems(self, workload: Workload) -> list[str]:
        """Return what the workload requires that the loader can't do."""


def settings_used(
    data_loader: str, dataset_format: str, engine: str, *, direct: bool = False, received: bool = False
) -> Collection[str]:
    """Return which of the settings that only some loaders use (OF_SOME_LOADERS) affect this loader with this engine.

    When reads bypass the page cache (`direct`), they are not made by a library, so their size can be set. An unknown
    loader is reported elsewhere. The module of a user's own loader is not imported for a configuration from an unknown
    source (`received`).
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
    """Return what the workload requires that its loader can't do; raises UserError for an unknown loader."""
    traits: type[SettingTraits] | None = companion(LOADERS, workload.reader.data_loader, "Traits")
    return [] if traits is None else traits().problems(workload)
