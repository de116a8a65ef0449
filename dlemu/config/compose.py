"""Hydra composes one workload: its file, and what the file's defaults list draws in."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from datagen.errors import UserError
from datagen.regular import read_regular
from dlemu.config.workload_files import SUFFIX, workload_file

CONFIG_MODULE = "dlemu.configs"
HYDRA_VERSION_BASE = "1.3"
MOST_YAML_BYTES, MOST_YAML_VALUES = 1 << 20, 10_000
"""Of one file of settings; all that there are fill 10 KB, and 10,000 values take hydra some seconds."""
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
"""How MLPerf Storage's workload files name an environment variable, which hydra would take for a key."""
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def composed(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of the chosen workload as plain nested values, interpolations still unresolved.

    Raises UserError when there is no such workload, or its file is not a mapping in YAML.
    """
    path = workload_file(choice, config_dir)
    _check_file(path)
    try:
        tree = _as_it_stands(path)
        if tree is None:
            with _own_hydra():
                tree = _from_file(os.path.abspath(path))
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


def read_plain(path: str) -> dict[str, Any]:
    """Return what a file of YAML has that was received: plain values, none of which refers to anything else.

    References (`${oc.env:NAME}`) would look at this host. Raises UserError.
    """
    _check_file(path)
    try:
        tree = yaml.load(read_regular(path, MOST_YAML_BYTES), YAML_LOADER)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is a {type(tree).__name__}: wanted a mapping of sections")
    if _refers(tree):
        raise UserError(f"{path} has references (${{...}}): wanted the plain values that dlemu writes")
    return {str(key): value for key, value in tree.items()}


def _refers(value: Any) -> bool:
    """Say whether there is a reference that is not escaped, as `to_yaml` escapes what only looks like one."""
    if isinstance(value, dict):
        return any(_refers(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(map(_refers, value))
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def _check_file(path: str) -> None:
    """Raise UserError for a file of YAML that is none, or takes more time and memory to compose than any would."""
    try:
        root = yaml.compose(read_regular(path, MOST_YAML_BYTES), YAML_LOADER)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; wanted a YAML file of settings") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        return  # said in hydra's words when it is composed
    values = _count(root, {})
    if values > MOST_YAML_VALUES:
        raise UserError(f"{path} has {values} keys and values: wanted settings, {MOST_YAML_VALUES} of them at most")


def _count(node: yaml.Node | None, counted: dict[int, int]) -> int:
    """Return how many values a node makes, with what its aliases repeat."""
    if id(node) in counted:
        return counted[id(node)]
    counted[id(node)] = 1  # of a node that holds itself
    if isinstance(node, yaml.MappingNode):
        counted[id(node)] += sum(_count(part, counted) for pair in node.value for part in pair)
    elif isinstance(node, yaml.SequenceNode):
        counted[id(node)] += sum(_count(part, counted) for part in node.value)
    return counted[id(node)]


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """Return plain nested values with each `${...}` replaced by what it means; UserError names one that can't be."""
    try:
        return _plain(OmegaConf.create(_with_environment(tree)), resolve=True)
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


def _as_it_stands(path: str) -> dict[str, Any] | None:
    """Return what a file has that draws in no other, as no shipped one does; None where hydra has more to do.

    Hydra takes a tenth of a CPU second for the same answer, and `dlemu workloads` asks for 70.
    """
    text = read_regular(path, MOST_YAML_BYTES).decode()
    if "@package" in text:
        return None
    config = OmegaConf.create(text)
    if not isinstance(config, DictConfig) or not {"defaults", "hydra"}.isdisjoint(config):
        return None
    return _plain(config)


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


def _with_environment(tree: Any, *, options: bool = False) -> Any:
    """Return the tree with `${AWS_REGION}` among a storage's options replaced by that variable, null where not set."""
    if isinstance(tree, dict):
        return {
            key: _with_environment(value, options=options or key == "storage_options") for key, value in tree.items()
        }
    variable = _VARIABLE.fullmatch(tree) if options and isinstance(tree, str) else None
    return os.environ.get(variable[1]) if variable else tree


def _plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    if not isinstance(plain, dict):
        raise UserError(f"the workload is a {type(plain).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in plain.items()}


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
