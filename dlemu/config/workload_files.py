"""Finds and reads workload files: shipped with dlemu, with an installed kind of job, and the user's own.

Hydra composes files that include others by a defaults list. OmegaConf alone reads other files, in 0.06 CPU s less.
"""

from __future__ import annotations

import os
import re
import warnings
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
_HYDRA_VERSION = "1.3"
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
        raise UserError(f"there is no workload {choice!r}: {_suggestion(choice, sorted(paths))}known: {names}")
    return paths[choice]


def _suggestion(choice: str, names: list[str]) -> str:
    """Return a question, or nothing: of unet3d_h200, a name as in DLIO, with which accelerators unet3d exists."""
    base, _, accelerator = choice.rpartition("_")
    if base not in shipped_workloads():
        return nearest(choice, names)
    accelerators = compose_workload(base, None).get("accelerators", {})
    if not accelerators:
        return f"did you mean workload={base}? "
    suggested = accelerator if accelerator in accelerators else " or ".join(accelerators)
    return f"did you mean workload={base} accelerator={suggested}? "


def compose_workload(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of the chosen workload as nested values, references unresolved; raises UserError."""
    path = workload_file(choice, config_dir)
    content = _read_limited(path)
    try:
        tree = _parse(content)
        if "defaults" in tree or "hydra" in tree or b"@package" in content:  # OmegaConf composes none of these
            tree = _compose_by_hydra(os.path.abspath(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"workload={choice} can't be composed: {error}") from None
    # DLIO's own configurations have all sections below `workload`, and Hydra puts a file of a folder `workload` there.
    sections = tree.get("workload")
    if isinstance(sections, dict):
        del tree["workload"]
        return tree | sections
    if sections is None:
        tree.pop("workload", None)
    return tree


def _compose_by_hydra(path: str) -> dict[str, Any]:
    """Compose the file; its defaults list can name shipped workloads. Raises ValueError with Hydra's message."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    folder, file = os.path.split(path)
    name = file.removesuffix(SUFFIX)
    parent, group = os.path.split(folder)
    if group == "workload":
        folder, name = parent, f"{group}/{name}"
    hydra_of_caller = GlobalHydra.instance().hydra  # a process has one instance, which the calling program may use
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(folder, version_base=_HYDRA_VERSION), warnings.catch_warnings():
            # Hydra warns of a defaults list without `_self_`; the file then comes last, as is usually intended.
            warnings.simplefilter("ignore", UserWarning)
            return _to_dict(compose(name, overrides=[f"hydra.searchpath=[pkg://{_CONFIG_MODULE}]"]))
    except (HydraException, OmegaConfBaseException) as error:
        # Hydra adds its search path, which does not help the user.
        raise ValueError(str(error).split("\nConfig search path", 1)[0]) from None
    finally:
        GlobalHydra.instance().hydra = hydra_of_caller


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
