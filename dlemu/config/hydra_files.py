"""Hydra composes a workload whose file draws in others by a defaults list."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from dlemu.config.workload_files import SUFFIX

_CONFIG_MODULE = "dlemu.configs"
_VERSION_BASE = "1.3"


def composed_by_hydra(path: str) -> DictConfig:
    """Compose the file as the root, wherever it lies; its defaults list can name shipped workloads.

    Raises ValueError in hydra's words.
    """
    folder, file = os.path.split(path)
    name = file.removesuffix(SUFFIX)
    parent, group = os.path.split(folder)
    if group == "workload":
        folder, name = parent, f"{group}/{name}"
    with _own_hydra(), initialize_config_dir(folder, version_base=_VERSION_BASE), warnings.catch_warnings():
        # Hydra warns of a defaults list without `_self_`; the file then comes last, as its writer means it.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return compose(name, overrides=[f"hydra.searchpath=[pkg://{_CONFIG_MODULE}]"])
        except HydraException as error:
            # Hydra adds where it searched, which says nothing to the writer of a workload.
            raise ValueError(str(error).split("\nConfig search path", 1)[0]) from None


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Set the hydra of a program that calls us aside: hydra keeps one for each process."""
    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with _existing_folder():
            yield
    finally:
        GlobalHydra.instance().hydra = theirs


@contextmanager
def _existing_folder() -> Iterator[None]:
    """Be elsewhere meanwhile where somebody removed the current folder in mid-run: hydra notes its name."""
    try:
        os.getcwd()
    except FileNotFoundError:
        gone = os.open(".", os.O_PATH | os.O_DIRECTORY)
        os.chdir(os.sep)
        try:
            yield
        finally:
            os.fchdir(gone)  # relative paths shall find nothing, as before
            os.close(gone)
    else:
        yield
