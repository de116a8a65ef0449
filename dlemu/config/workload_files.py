"""Finds workload files: shipped ones, those in a folder `workload` of an installed kind of job, and the user's own."""

from __future__ import annotations

import os
from functools import cache
from importlib import resources

from datagen.errors import UserError
from datagen.registry import installed
from datagen.registry import nearest as nearest

SUFFIX = ".yaml"


def workload_names(config_dir: str | None = None) -> list[str]:
    """Return the names that `workload=NAME` takes, sorted; `config_dir` adds those in CONFIG_DIR/workload."""
    own = {name.removesuffix(SUFFIX) for name in _own(config_dir) if name.endswith(SUFFIX)}
    return sorted(shipped_workloads().keys() | own)


@cache
def shipped_workloads() -> dict[str, str]:
    """Return name -> path of the workloads of this distribution and of installed kinds of jobs."""
    packages = ["dlemu.configs", *(entry.module for entry in installed("dlemu.jobs").values())]
    folders = [resources.files(package) / "workload" for package in packages]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return {file.name.removesuffix(SUFFIX): str(file) for file in files if file.name.endswith(SUFFIX)}


def workload_file(choice: str, config_dir: str | None) -> str:
    """Return the path of the file that `workload=CHOICE` selects; raises UserError.

    A choice with a slash or an ending is a path; a name is searched in CONFIG_DIR/workload first.
    """
    if os.sep in choice or choice.endswith((SUFFIX, ".yml")):
        return _checked_path(choice)
    if f"{choice}{SUFFIX}" in _own(config_dir):
        return os.path.join(str(config_dir), "workload", f"{choice}{SUFFIX}")
    known = workload_names(config_dir)
    if choice not in known:
        raise UserError(f"there is no workload {choice!r}: {_suggestion(choice, known)}known: {', '.join(known)}")
    return shipped_workloads()[choice]


def _own(config_dir: str | None) -> list[str]:
    if config_dir is None:
        return []
    folder = os.path.join(config_dir, "workload")
    try:
        return os.listdir(folder)
    except OSError as error:
        raise UserError(
            f"--config-dir {config_dir}: {folder} can't be listed ({error.strerror});"
            " wanted a folder that holds workload/NAME.yaml"
        ) from None


def _checked_path(path: str) -> str:
    if not path.endswith(SUFFIX):
        raise UserError(f"workload={path} is a path that does not end in {SUFFIX}: wanted a YAML file with that ending")
    if not os.path.exists(path):
        raise UserError(
            f"workload={path}: there is no such file; wanted a YAML file, or a name: {', '.join(workload_names())}"
        )
    return path


def _suggestion(choice: str, known: list[str]) -> str:
    # DLIO has one file per accelerator, named WORKLOAD_ACCELERATOR.
    base, _, accelerator = choice.rpartition("_")
    if base not in shipped_workloads():
        return nearest(choice, known)
    import yaml  # most commands find their file

    with open(shipped_workloads()[base]) as file:
        has = yaml.safe_load(file).get("accelerators", {})
    wanted = accelerator if accelerator in has else " or ".join(has)
    return f"did you mean workload={base}{f' accelerator={wanted}' if wanted else ''}? "
