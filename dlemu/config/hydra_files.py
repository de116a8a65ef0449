"""Composes, with Hydra, a workload whose file includes others by a defaults list."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dlemu.config.references import plain
from dlemu.config.workload_files import SUFFIX

_CONFIG_MODULE = "dlemu.configs"
_VERSION_BASE = "1.3"


def composed_by_hydra(path: str) -> dict[str, Any]:
    """Compose the file, in any folder, as the root; its defaults list can name shipped workloads.

    Raises ValueError with Hydra's message.
    """
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
    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with _existing_folder():
            yield
    finally:
        GlobalHydra.instance().hydra = theirs


@contextmanager
def _existing_folder() -> Iterator[None]:
    """If the current folder was removed, change to / meanwhile, as Hydra asks for the current folder's name."""
    try:
        os.getcwd()
    except FileNotFoundError:
        gone = os.open(".", os.O_PATH | os.O_DIRECTORY)
        os.chdir(os.sep)
        try:
            yield
        finally:
            os.fchdir(gone)  # so that relative paths find nothing, as before
            os.close(gone)
    else:
        yield
