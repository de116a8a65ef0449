"""The settings of a run, and the only interface to hydra. Importing this costs nothing; hydra comes where it is needed.

`schema` declares every setting that jobs share, with its range and meaning; a kind's own are in its `settings`. May
import datagen alone.

workload = load(["workload=unet3d", "accelerator=v100", "ranks=18"])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command imports this package, and most of its files for a message or a list alone
    from dlemu.config.schema import Workload

__all__ = [
    "check_checkpoints",
    "check_data",
    "check_runnable",
    "completed",
    "datagen_command",
    "digest",
    "explained",
    "load",
    "to_yaml",
    "workload_names",
]


def load(overrides: Sequence[str], *, config_dir: str | None = None) -> Workload:
    """Return the workload that the overrides select and change: composed, resolved, built strictly and checked.

    `workload=NAME` takes a shipped workload or one of CONFIG_DIR/workload, `workload=FILE.yaml` any file. Later layers
    win: the file; batch size and computation time of `accelerator=NAME`; the entries of `scale=NAME`; other overrides.

    Raises UserError that lists all problems: bad grammar, unknown names and keys (with suggestions), impossible values.
    """
    from dlemu.config import loading

    return loading.load(overrides, config_dir)


def workload_names(config_dir: str | None = None) -> list[str]:
    """Return the names that `workload=NAME` takes, sorted; `config_dir` adds those in CONFIG_DIR/workload."""
    from dlemu.config import workload_files

    return workload_files.workload_names(config_dir)


def load_received(path: str) -> Workload:
    """Load the config.yaml of a result, which may come from anywhere; see `dlemu.config.loading.load_received`."""
    from dlemu.config import loading

    return loading.load_received(path)


def completed(words: Sequence[str], other: Workload, *, config_dir: str | None = None) -> list[str]:
    """Return overrides `words` completed by the settings of another workload.

    Its accelerator, scale and other settings apply unless the words set them; another accelerator or scale brings its
    own settings. If the words select a different workload, nothing is added. Raises UserError.
    """
    from dlemu.config import dump

    return dump.completed(words, other, config_dir)


def to_yaml(workload: Workload) -> str:
    """Return all settings as YAML; loading it as a workload file gives an equal Workload."""
    from dlemu.config import dump

    return dump.to_yaml(workload)


def digest(workloads: Sequence[Workload]) -> str:
    """Return a digest of all settings but those of `output`, credentials left out: equal settings have equal ones."""
    from dlemu.config import dump

    return dump.digest(workloads)


def explained(workload: Workload) -> str:
    """Return the YAML of `to_yaml` with the meaning of each setting as a comment above it."""
    from dlemu.config import dump

    return dump.explained(workload)


def datagen_command(source: Sequence[str] | Workload) -> str:
    """Return the `dlemu datagen ...` command, quoted for a shell, that makes the dataset of overrides or a Workload.

    Overrides are kept as the user wrote them; for a Workload it names a shipped workload and what differs from it.
    """
    from dlemu.config import dump

    return dump.datagen_command(source)


def check_runnable(workload: Workload) -> None:
    """Raise UserError that lists what prevents this version from training with the workload."""
    from dlemu.config import validate

    validate.check_runnable(workload)


def check_data(workload: Workload) -> None:
    """Raise UserError that lists what prevents this version from making the workload's dataset."""
    from dlemu.config import validate

    validate.check_data(workload)


def check_checkpoints(workload: Workload) -> None:
    """Raise UserError that lists what prevents this version from writing and reading the workload's checkpoints."""
    from dlemu.config import validate

    validate.check_checkpoints(workload)
