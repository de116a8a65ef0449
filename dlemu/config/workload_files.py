"""Finds and reads workload files: those of dlemu, of installed kinds of jobs, and the user's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import chain, islice
from typing import Any

import yaml

from datagen.errors import UserError
from datagen.registry import installed, nearest
from datagen.regular import read_regular

SUFFIX = ".yaml"
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_YAML_BYTES = 1 << 20  # all existing settings take 10 KB
MOST_YAML_VALUES = 10_000  # nested aliases can expand a short file to any number of values
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def workload_names(config_dir: str | None = None) -> list[str]:
    """Return the names that `workload=NAME` accepts, sorted; `config_dir` adds those in CONFIG_DIR/workload."""
    return sorted(_files(config_dir))


def _files(config_dir: str | None) -> dict[str, str]:
    """Return name -> path of all workloads; a file in CONFIG_DIR replaces a shipped one. Raises UserError."""
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
    packages = ["dlemu.configs", *(entry.module for entry in installed("dlemu.jobs").values())]
    folders = [resources.files(package) / "workload" for package in packages]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return {file.name.removesuffix(SUFFIX): str(file) for file in files if file.name.endswith(SUFFIX)}


def _workload_file(choice: str, config_dir: str | None) -> str:
    """Return the file for `workload=CHOICE`: a path if it has a slash or an ending, else a name; raises UserError."""
    paths = _files(config_dir)
    names = ", ".join(sorted(paths))
    if os.sep in choice or choice.endswith((SUFFIX, ".yml")):
        if choice.endswith(SUFFIX) and os.path.exists(choice):
            return choice
        problem = "there is no such file" if choice.endswith(SUFFIX) else f"it does not end in {SUFFIX}"
        raise UserError(f"workload={choice}: {problem}; wanted a file NAME{SUFFIX}, or a name: {names}")
    if choice not in paths:
        raise UserError(f"there is no workload {choice!r}: {nearest(choice, paths)}known: {names}")
    return paths[choice]


def compose_workload(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of a workload file as nested values, with references unresolved; raises UserError."""
    tree = read_plain(_workload_file(choice, config_dir), keeps_references=True)
    if "defaults" in tree:
        raise UserError(
            f"workload={choice} includes other files by a defaults list: wanted one file with all its settings; `dlemu "
            "train workload=NAME --cfg` prints those of a workload"
        )
    tree.pop("hydra", None)  # Hydra's own settings, which a workload does not need
    sections = tree.pop("workload", None) or {}  # DLIO's own configurations have all sections below `workload`
    return tree | (sections if isinstance(sections, dict) else {"workload": sections})


def _to_dict(values: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return nested values, or the values in YAML text, as a mapping; raises ValueError for anything else.

    `resolve` replaces references, and raises OmegaConfBaseException for one without a value.
    """
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(OmegaConf.create(values), resolve=resolve, throw_on_missing=resolve)
    if not isinstance(tree, dict):
        raise ValueError(f"it is a {type(tree).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in tree.items()}


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


def read_plain(path: str, *, keeps_references: bool = False) -> dict[str, Any]:
    """Return the values in a YAML file from any source; raises UserError, also for references unless they are kept."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = read_regular(path, MOST_YAML_BYTES)
        nodes = list(islice(_nodes(yaml.compose(content, YAML_LOADER)), MOST_YAML_VALUES + 1))
        if len(nodes) > MOST_YAML_VALUES:
            raise ValueError(f"it has too many keys and values (aliases expanded): wanted at most {MOST_YAML_VALUES}")
        tree = _to_dict(content.decode())
    except RecursionError:
        problem = "its values refer to themselves, or nest too deep"
    except OSError as error:
        problem = f"{error.strerror}; wanted a file of YAML"
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        problem = str(error)
    else:
        texts = (node.value for node in nodes if isinstance(node, yaml.ScalarNode))
        if not keeps_references and any(map(_REFERENCE.search, texts)):
            raise UserError(f"{path} has references (${{...}}): wanted the plain values that dlemu writes")
        return tree
    raise UserError(f"{path} can't be read: {problem}")


def _nodes(root: Any) -> Iterator[Any]:
    """Yield a YAML node and all keys and values below it, with aliases expanded; endless if it contains itself."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, yaml.MappingNode):
            pending += chain(*node.value)
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value
