"""The settings of a run, and hydra's only door. Importing this costs nothing: hydra comes with the first call.

workload = load(["workload=unet3d", "accelerator=v100", "ranks=18"])
"""

from __future__ import annotations

from collections.abc import Sequence

from dlemu.config.schema import Workload
from dlemu.config.workload_files import workload_names

__all__ = [
    "check_runnable",
    "data_problems",
    "datagen_command",
    "load",
    "only_makes_data",
    "problems",
    "to_yaml",
    "workload_names",
]


def load(overrides: Sequence[str], *, config_dir: str | None = None) -> Workload:
    """Return the workload that the overrides name and change: composed, resolved, built strictly and checked.

    `workload=NAME` takes a shipped workload or one of CONFIG_DIR/workload, `workload=FILE.yaml` any file. Later layers
    win: the file, the pair of `accelerator=NAME`, the entries of `scale=NAME`, then every other override.

    Raises UserError that lists the problems: bad grammar, unknown names and keys with the nearest, impossible values.
    """
    from dlemu.config import loading

    return loading.load(overrides, config_dir)


def to_yaml(workload: Workload) -> str:
    """Return all settings as YAML; loading it as a workload file gives an equal Workload."""
    from dlemu.config import dump

    return dump.to_yaml(workload)


def datagen_command(source: Sequence[str] | Workload) -> str:
    """Return the `dlemu datagen ...` command, quoted for a shell, that makes the dataset of overrides or a Workload.

    Of overrides it keeps the user's own words; for a Workload it names a shipped workload and what differs from it.
    """
    from dlemu.config import dump

    return dump.datagen_command(source)


def problems(workload: Workload) -> list[str]:
    """Return what this version can't do of what the workload asks for, a sentence each; mostly none.

    A workload that asks for its dataset alone has those of `data_problems`, any other those of training.
    """
    from dlemu.config import validate

    return validate.problems(workload)


def data_problems(workload: Workload) -> list[str]:
    """Return what this version can't do to make the workload's dataset, a sentence each; mostly none."""
    from dlemu.config import validate

    return validate.data_problems(workload)


def only_makes_data(workload: Workload) -> bool:
    """Say whether the workload asks for its dataset and nothing more, as DLIO's files do that generate data."""
    from dlemu.config import validate

    return validate.only_makes_data(workload)


def check_runnable(workload: Workload) -> None:
    """Raise UserError that lists what this version can't do to train with the workload, whatever it asks for."""
    from dlemu.config import validate

    validate.check_runnable(workload)
