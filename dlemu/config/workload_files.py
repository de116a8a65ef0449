"""Finds and reads workload files: shipped ones, those in a folder `workload` of an installed kind, the user's own.

Hydra composes files that include others by a defaults list; for the others OmegaConf alone, which saves 0.06 CPU s.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any

from datagen.errors import UserError
from datagen.registry import installed, nearest
from datagen.regular import read_regular

SUFFIX = ".yaml"
MOST_YAML_BYTES, MOST_YAML_VALUES = 1 << 20, 10_000  # all existing settings fill 10 KB; aliases multiply
_CONFIG_MODULE = "dlemu.configs"
_HYDRA_VERSION = "1.3"
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def workload_names(config_dir: str | None = None) -> list[str]:
    """Return the names that `workload=NAME` takes, sorted; `config_dir` adds those in CONFIG_DIR/workload."""
    return sorted(_files(config_dir))


def _files(config_dir: str | None) -> dict[str, str]:
    """Return name -> path of all workloads; those of CONFIG_DIR come before shipped ones. Raises UserError."""
    found = dict(shipped_workloads())
    if config_dir is not None:
        folder = os.path.join(config_dir, "workload")
        try:
            own = os.listdir(folder)
        except OSError as error:
            raise UserError(
                f"--config-dir {config_dir}: {folder} can't be listed ({error.strerror});"
                " wanted a folder that holds workload/NAME.yaml"
            ) from None
        found |= {name.removesuffix(SUFFIX): os.path.join(folder, name) for name in own if name.endswith(SUFFIX)}
    return found


@cache
def shipped_workloads() -> dict[str, str]:
    """Return name -> path of the workloads of this distribution and of installed kinds of jobs."""
    packages = [_CONFIG_MODULE, *(entry.module for entry in installed("dlemu.jobs").values())]
    folders = [resources.files(package) / "workload" for package in packages]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return {file.name.removesuffix(SUFFIX): str(file) for file in files if file.name.endswith(SUFFIX)}


def workload_file(choice: str, config_dir: str | None) -> str:
    """Return the path of the file that `workload=CHOICE` selects: CHOICE itself with a slash or an ending, or a name's.

    Raises UserError.
    """
    if os.sep in choice or choice.endswith((SUFFIX, ".yml")):
        if not choice.endswith(SUFFIX) or not os.path.exists(choice):
            problem = "there is no such file" if choice.endswith(SUFFIX) else f"it does not end in {SUFFIX}"
            raise UserError(
                f"workload={choice}: {problem}; wanted a file NAME{SUFFIX}, or a name: {', '.join(workload_names())}"
            )
        return choice
    known = _files(config_dir)
    if choice not in known:
        names = sorted(known)
        raise UserError(f"there is no workload {choice!r}: {_suggestion(choice, names)}known: {', '.join(names)}")
    return known[choice]


def _suggestion(choice: str, known: list[str]) -> str:
    # DLIO has one file per accelerator, named WORKLOAD_ACCELERATOR.
    base, _, accelerator = choice.rpartition("_")
    if base not in shipped_workloads():
        return nearest(choice, known)
    has = composed(base, None).get("accelerators", {})
    wanted = accelerator if accelerator in has else " or ".join(has)
    return f"did you mean workload={base}{f' accelerator={wanted}' if wanted else ''}? "


def composed(choice: str, config_dir: str | None) -> dict[str, Any]:
    """Return the sections of the chosen workload as nested values, interpolations unresolved; raises UserError."""
    path = workload_file(choice, config_dir)
    content = _checked_content(path)
    try:
        tree = _parsed(content)
        if not {"defaults", "hydra"}.isdisjoint(tree) or b"@package" in content:  # what OmegaConf does not compose
            tree = _by_hydra(os.path.abspath(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"workload={choice} can't be composed: {error}") from None
    # All sections are below `workload` in DLIO's own configurations, and for files in a folder `workload` in Hydra.
    inner = tree.get("workload", {})
    if inner is not None and not isinstance(inner, dict):
        return tree
    return {**{key: value for key, value in tree.items() if key != "workload"}, **(inner or {})}


def _by_hydra(path: str) -> dict[str, Any]:
    """Compose the file; its defaults list can name shipped workloads. Raises ValueError with Hydra's message."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    folder, file = os.path.split(path)
    name = file.removesuffix(SUFFIX)
    parent, group = os.path.split(folder)
    if group == "workload":
        folder, name = parent, f"{group}/{name}"
    with _own_hydra(), initialize_config_dir(folder, version_base=_HYDRA_VERSION), warnings.catch_warnings():
        # Hydra warns of a defaults list without `_self_`; the file then comes last, as is usually intended.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return _plain(compose(name, overrides=[f"hydra.searchpath=[pkg://{_CONFIG_MODULE}]"]))
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


def _plain(config: Any, *, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration, or a text of YAML, as nested values; raises ValueError for one that is no mapping."""
    from omegaconf import OmegaConf

    made = config if OmegaConf.is_config(config) else OmegaConf.create(config)
    plain = OmegaConf.to_container(made, resolve=resolve, throw_on_missing=resolve)
    if not isinstance(plain, dict):
        raise ValueError(f"it is a {type(plain).__name__}: wanted a mapping of sections")
    return {str(key): value for key, value in plain.items()}


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """Return plain nested values with each `${...}` replaced by its value; raises UserError for one without a value."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return _plain(tree, resolve=True)
    except RecursionError:
        raise UserError("the settings refer to themselves, or nest too deep: wanted sections of plain values") from None
    except OmegaConfBaseException as error:
        raise UserError(
            f"{str(error).splitlines()[0]} (at {error.full_key}): wanted a value, or a reference to a key that is set"
        ) from None


def read_plain(path: str) -> dict[str, Any]:
    """Return the values in a YAML file of unknown source; raises UserError, also for references to this host."""
    content = _checked_content(path)
    try:
        tree = _parsed(content)
    except ValueError as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if _refers(tree):
        raise UserError(f"{path} has references (${{...}}): wanted the plain values that dlemu writes")
    return tree


def _parsed(content: bytes) -> dict[str, Any]:
    """Return the values in a text of YAML, references as they are; raises ValueError that says what is wrong."""
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return _plain(content.decode())
    except RecursionError:
        raise ValueError("its values refer to themselves, or nest too deep") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise ValueError(str(error)) from None


def yaml_loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_refers(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(map(_refers, value))
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def _checked_content(path: str) -> bytes:
    """Read a YAML file; raises UserError for one with more values than any real one, as composing it takes long."""
    import yaml

    try:
        content = read_regular(path, MOST_YAML_BYTES)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; wanted a file of YAML") from None
    try:
        root = yaml.compose(content, yaml_loader())
    except (yaml.YAMLError, ValueError, RecursionError):
        return content  # reading it reports what is wrong
    values = _count(root, {})
    if values > MOST_YAML_VALUES:
        raise UserError(f"{path} has {values} keys and values (aliases expanded): wanted at most {MOST_YAML_VALUES}")
    return content


def _count(node: Any, counted: dict[int, int]) -> int:
    """Return the number of values in a node of YAML, counting aliases as often as they are used."""
    if id(node) not in counted:
        counted[id(node)] = 1  # for a node that contains itself
        inner = node.value if node is not None and isinstance(node.value, list) else []
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        counted[id(node)] += sum(_count(part, counted) for part in parts)
    return counted[id(node)]
