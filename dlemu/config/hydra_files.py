"""Reads what is more than plain YAML: with Hydra files that include others by a defaults list, and with OmegaConf
references between settings and numbers such as 1e6.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datagen.errors import UserError
from dlemu.config.workload_files import SUFFIX

_CONFIG_MODULE = "dlemu.configs"
_VERSION_BASE = "1.3"


def composed_by_hydra(path: str) -> dict[str, Any]:
    """Compose the file; its defaults list can name shipped workloads. Raises ValueError with Hydra's message."""
    from hydra import compose, initialize_config_dir  # takes 0.05 CPU s, and references need OmegaConf alone
    from hydra.errors import HydraException

    folder, file = os.path.split(path)
    name = file.removesuffix(SUFFIX)
    parent, group = os.path.split(folder)
    if group == "workload":
        folder, name = parent, f"{group}/{name}"
    with _own_hydra(), initialize_config_dir(folder, version_base=_VERSION_BASE), warnings.catch_warnings():
        # Hydra warns of a defaults list without `_self_`; the file then comes last, as is usually intended.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return plain(compose(name, overrides=[f"hydra.searchpath=[pkg://{_CONFIG_MODULE}]"]))
        except (HydraException, OmegaConfBaseException) as error:
            # Hydra adds its search path, which does not help the user.
            raise ValueError(str(error).split("\nConfig search path", 1)[0]) from None


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Put aside the calling program's Hydra, as Hydra has one global instance per process."""
    from hydra.core.global_hydra import GlobalHydra

    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


def read_text(text: str) -> dict[str, Any] | None:
    """Return the sections in a text of YAML, references unresolved; None if it is no mapping. Raises ValueError."""
    try:
        config = OmegaConf.create(text)
        return plain(config) if isinstance(config, DictConfig) else None
    except OmegaConfBaseException as error:
        raise ValueError(str(error)) from None


def with_references(tree: dict[str, Any]) -> dict[str, Any]:
    """Return nested values with each `${...}` replaced by its value; raises UserError for one without a value."""
    try:
        return plain(OmegaConf.create(tree), resolve=True)
    except RecursionError:
        raise UserError("the settings refer to themselves, or nest too deep: wanted sections of plain values") from None
    except OmegaConfBaseException as error:
        raise UserError(
            f"{str(error).splitlines()[0]} (at {error.full_key}): wanted a value, or a reference to a key that is set"
        ) from None


def plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration as nested values; raises UserError for one that is no mapping."""
    plain = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    if not isinstance(plain, dict):
        raise UserError(f"the workload is a {type(plain).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in plain.items()}
