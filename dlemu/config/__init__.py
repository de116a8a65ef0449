"""The settings of a run, and the only interface to hydra. Importing this costs nothing; hydra comes where it is needed.

`schema` declares every setting that jobs share, with its range and meaning; a kind's own are in its `settings`. May
import datagen alone.

workload = load(["workload=unet3d", "accelerator=v100", "ranks=18"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datagen.registry import import_by_name

if TYPE_CHECKING:  # every command imports this package, and most of its files for a message or a list alone
    from dlemu.config.dump import completed as completed
    from dlemu.config.dump import datagen_command as datagen_command
    from dlemu.config.dump import digest as digest
    from dlemu.config.dump import explained as explained
    from dlemu.config.dump import to_yaml as to_yaml
    from dlemu.config.loading import load as load
    from dlemu.config.loading import load_received as load_received
    from dlemu.config.validate import check_checkpoints as check_checkpoints
    from dlemu.config.validate import check_data as check_data
    from dlemu.config.validate import check_folder as check_folder
    from dlemu.config.validate import check_runnable as check_runnable
    from dlemu.config.workload_files import workload_names as workload_names

_MODULES = {
    "dump": ("completed", "datagen_command", "digest", "explained", "to_yaml"),
    "loading": ("load", "load_received"),
    "validate": ("check_checkpoints", "check_data", "check_folder", "check_runnable"),
    "workload_files": ("workload_names",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return import_by_name(f"{__name__}.{module}", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
