"""The settings of a run, and the only interface to hydra. Importing this costs nothing; hydra comes where it is needed.

`schema` declares every setting that jobs share, with its range and meaning; a kind's own are in its `settings`. May
import datagen alone.

workload = load(["workload=unet3d", "accelerator=v100", "ranks=18"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every command imports this package, and most of its files for a message or a list alone
    from dlemu.config.dump import completed, datagen_command, digest, explained, to_yaml
    from dlemu.config.loading import load, load_received
    from dlemu.config.validate import check_checkpoints, check_data, check_runnable
    from dlemu.config.workload_files import workload_names

_MODULES = {
    "dump": ("completed", "datagen_command", "digest", "explained", "to_yaml"),
    "loading": ("load", "load_received"),
    "validate": ("check_checkpoints", "check_data", "check_runnable"),
    "workload_files": ("workload_names",),
}
__all__ = [
    "check_checkpoints",
    "check_data",
    "check_runnable",
    "completed",
    "datagen_command",
    "digest",
    "explained",
    "load",
    "load_received",
    "to_yaml",
    "workload_names",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
