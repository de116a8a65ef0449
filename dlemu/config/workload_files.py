"""Finds and reads workload files: shipped with dlemu, with an installed kind of job, and the user's own."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import resources
from typing import Any

import yaml

from datagen.errors import UserError
from datagen.registry import installed, nearest
from datagen.regular import read_regular

SUFFIX = ".yaml"
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_YAML_BYTES = 1 << 20  # all existing settings fill 10 KB
MOST_YAML_VALUES = 10_000  # aliases of aliases multiply the values of a short file
_CONFIG_MODULE = "dlemu.configs"
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def workload_names(config_dir: str | None = None) -> list[str]:
    """Return the names that `workload=NAME` takes, sorted; `config_dir` adds those in CONFIG_DIR/workload."""
    return sorted(_files(config_dir))


def _files(config_dir: str | None) -> dict[str, str]:
    """Return name -> path of all workloads; a file of CONFIG_DIR replaces a shipped workload. Raises UserError."""
    paths = dict(shipped_workloads())
    if config_dir is not None:
        folder = os.path.join(config_dir, "workload")
        try:
            files = os.listdir(folder)
        except OSError as error:
            raise UserError(
                f"--config-dir {config_dir}: {folder} can't be listed ({error.strerror});"
                " wanted a folder that holds workload/NAME.yaml"
            ) from None
        paths |= {file.removesuffix(SUFFIX): os.path.join(folder, file) for file in files if file.endswith(SUFFIX)}
    return paths


@cache
def shipped_workloads() -> dict[str, str]:
    """Return name -> path of the workloads of this distribution and of installed kinds of jobs."""
    packages = [_CONFIG_MODULE, *(entry.module for entry in installed("dlemu.jobs").values())]
    folders = [resources.files(package) / "workload" for package in packages]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return {file.name.removesuffix(SUFFIX): str(file) for file in files if file.name.endswith(SUFFIX)}


def workload_file(choice: str, config_dir: str | None) -> str:
    """Return the path of the file for `workload=CHOICE`: a path if it has a slash or an ending, else a name.

    Raises UserError.
    """
    paths = _files(config_dir)
    names = ", ".join(sorted(paths))
    if os.sep in choice or choice.endswith((SUFFIX, ".yml")):
        if not choice.endswith(SUFFIX):
            problem = f"it does not end in {SUFFIX}"
        elif not os.path.exists(choice):
            problem = "there is no such file"
        else:
            return choice
        raise UserError(f"workload={choice}: {problem}; wanted a file NAME{SUFFIX}, or a name: {names}")
    if choice not in paths:
        raise UserError(f"there is no workload {choice!r}: {nearest(choice, paths)}known: {names}")
    return paths[choice]


def compose_workload(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of the chosen workload as nested values, references unresolved; raises UserError."""
    path = workload_file(choice, config_dir)
    try:
        tree = _parse(_read_limited(path))
    except ValueError as error:
        raise UserError(f"workload={choice} can't be composed: {error}") from None
    if "defaults" in tree:
        raise UserError(
            f"workload={choice} includes other files by a defaults list: wanted one file with all its settings; `dlemu "
            "train workload=NAME --cfg` prints those of a workload"
        )
    tree.pop("hydra", None)  # of Hydra's own settings a workload needs none
    # DLIO's own configurations have all sections below `workload`.
    sections = tree.get("workload")
    if isinstance(sections, dict):
        del tree["workload"]
        return tree | sections
    if sections is None:
        tree.pop("workload", None)
    return tree


def _to_dict(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration, nested values or a text of YAML as nested values; raises ValueError if it is no mapping.

    `resolve` replaces references, and raises for one without a value.
    """
    from omegaconf import OmegaConf

    config = config if OmegaConf.is_config(config) else OmegaConf.create(config)
    values = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    if not isinstance(values, dict):
        raise ValueError(f"it is a {type(values).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in values.items()}


def resolve(tree: dict[str, Any]) -> dict[str, Any]:
    """Return nested values with each `${...}` replaced by its value; raises UserError for one without a value."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return _to_dict(tree, resolve=True)
    except RecursionError:
        raise UserError("the settings refer to themselves, or nest too deep: wanted sections of plain values") from None
    except OmegaConfBaseException as error:
        raise UserError(
            f"{str(error).splitlines()[0]} (at {error.full_key}): wanted a value, or a reference to a key that is set"
        ) from None


def read_plain(path: str) -> dict[str, Any]:
    """Return the values in a YAML file of unknown source; raises UserError, also for references to this host."""
    content = _read_limited(path)
    try:
        tree = _parse(content)
    except ValueError as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if _has_references(tree):
        raise UserError(f"{path} has references (${{...}}): wanted the plain values that dlemu writes")
    return tree


def _parse(content: bytes) -> dict[str, Any]:
    """Return the values in a text of YAML, references unresolved; raises ValueError that says what is wrong."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return _to_dict(content.decode())
    except RecursionError:
        raise ValueError("its values refer to themselves, or nest too deep") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(str(error)) from None


def _has_references(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_references(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return any(map(_has_references, value))
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def _read_limited(path: str) -> bytes:
    """Return a YAML file's content; raises UserError for more values than any real file has, which take long."""
    try:
        content = read_regular(path, MOST_YAML_BYTES)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; wanted a file of YAML") from None
    try:
        root = yaml.compose(content, YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return content  # `_parse` reports what is wrong
    values = _count_values(root, {})
    if values > MOST_YAML_VALUES:
        raise UserError(f"{path} has {values} keys and values (aliases expanded): wanted at most {MOST_YAML_VALUES}")
    return content


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Return the number of values in a node of YAML, aliases expanded; `counts` is by the id of each counted node."""
    if id(node) not in counts:
        counts[id(node)] = 1  # for a node that contains itself
        children = node.value if node is not None and isinstance(node.value, list) else []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in children for child in pair]
        counts[id(node)] += sum(_count_values(child, counts) for child in children)
    return counts[id(node)]
