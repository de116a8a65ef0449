"""Hydra composes one workload: its file, and what the file's defaults list draws in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datagen.errors import UserError
from dlemu.config.workload_files import SUFFIX, workload_file

CONFIG_MODULE = "dlemu.configs"
HYDRA_VERSION_BASE = "1.3"


def composed(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of the chosen workload as plain nested values, interpolations still unresolved.

    Raises UserError when there is no such workload, or its file is not a mapping in YAML.
    """
    path = workload_file(choice, config_dir)
    try:
        with _own_hydra():
            tree = _shipped(choice) if path is None else _from_file(os.path.abspath(path))
    except RecursionError:
        raise UserError(
            f"workload={choice} can't be composed: its values refer to themselves, or lie too deep"
        ) from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        # Hydra adds where it searched, which says nothing to the writer of a workload.
        reason = str(error).split("\nConfig search path", 1)[0]
        raise UserError(f"workload={choice} can't be composed: {reason}") from None
    # DLIO's own configurations keep all sections below `workload`; so does hydra for a file in a folder of that name.
    inner = tree.get("workload", {})
    if inner is not None and not isinstance(inner, dict):
        return tree
    return {**{key: value for key, value in tree.items() if key != "workload"}, **(inner or {})}


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """Return plain nested values with each `${...}` replaced by what it means; UserError names one that can't be."""
    try:
        return _plain(OmegaConf.create(tree), resolve=True)
    except RecursionError:
        raise UserError("the settings refer to themselves, or lie too deep: wanted sections of plain values") from None
    except OmegaConfBaseException as error:
        raise UserError(
            f"{_first_line(error)} (at {error.full_key}): wanted a value, or a reference to a key that is set"
        ) from None


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


def _shipped(name: str) -> dict[str, Any]:
    with initialize_config_module(CONFIG_MODULE, version_base=HYDRA_VERSION_BASE):
        return _plain(compose("config", overrides=[f"workload@_global_={name}"]))


def _from_file(path: str) -> dict[str, Any]:
    """Compose the user's file as the root, wherever it lies; its defaults list can name shipped workloads."""
    folder, file = os.path.split(path)
    name = file.removesuffix(SUFFIX)
    parent, group = os.path.split(folder)
    if group == "workload":
        folder, name = parent, f"{group}/{name}"
    with initialize_config_dir(folder, version_base=HYDRA_VERSION_BASE), warnings.catch_warnings():
        # Hydra warns of a defaults list without `_self_`; the file then comes last, as its writer means it.
        warnings.simplefilter("ignore", UserWarning)
        return _plain(compose(name, overrides=[f"hydra.searchpath=[pkg://{CONFIG_MODULE}]"]))


def _plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    if not isinstance(plain, dict):
        raise UserError(f"the workload is a {type(plain).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in plain.items()}


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
