"""DLIO's command line: hydra overrides that name a workload, change it, and say where the run's files go."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from datagen.errors import UserError
from dlemu.config import load, workload_names
from dlemu.config.loading import DEFAULT_WORKLOAD
from dlemu.config.overrides import override, parse
from dlemu.config.schema import Workload
from dlemu.dlio.config import OWN_FOLDER, DlioFolders

DEFAULT_SUBFOLDER = ".hydra"
"""Where hydra keeps a run's configuration unless `hydra.output_subdir` says otherwise."""

_NOW = re.compile(r"\$\{now:([^}]*)\}")


def load_command(words: Sequence[str], config_dir: str | None) -> tuple[Workload, DlioFolders]:
    """Return the workload that the overrides ask for, its `output.folder` set, and the folders for DLIO's files.

    DLIO's files go where DLIO writes them: `output.folder` of the workload, or else hydra's run folder, by default
    `hydra_log/MODEL/TIME`. dlemu's own files go into the subfolder `dlemu`. Raises UserError.
    """
    choice, given = parse(words)
    hydra = {setting.path[1:]: setting.value for setting in given if setting.path[0] == "hydra"}
    settings = [setting.text for setting in given if setting.path[0] != "hydra"]
    workload = load([*_workload_overrides(choice, config_dir), *settings], config_dir=config_dir)
    run_folder, subfolder = hydra.get(("run", "dir")), hydra.get(("output_subdir",), DEFAULT_SUBFOLDER)
    named = None if run_folder is None else _with_time(str(run_folder))
    folder = workload.output.folder or named or _with_time(f"hydra_log/{workload.model.name}/{_TIME}")
    folders = DlioFolders(
        folder=folder,
        config_folder=None if subfolder is None else os.path.join(named or folder, str(subfolder)),
        overrides=(*([f"workload={choice}"] if choice else []), *settings),
    )
    output = replace(workload.output, folder=_unused(os.path.join(folder, OWN_FOLDER)))
    return replace(workload, output=output), folders


_TIME = "${now:%Y-%m-%d}-${now:%H-%M-%S}"


def _workload_overrides(choice: str, config_dir: str | None) -> list[str]:
    """Translate DLIO's `workload=NAME_ACCELERATOR`: DLIO has a file per accelerator, dlemu a table per workload.

    The folder `workload` beside this file has those of DLIO's workloads that dlemu lacks, or has under another name.
    """
    choice = choice or DEFAULT_WORKLOAD
    dlios, own = (
        os.path.join(folder, "workload", f"{choice}.yaml")
        for folder in (os.path.dirname(__file__), config_dir or os.devnull)
    )
    if os.path.exists(dlios) and not os.path.exists(own):
        return [override(("workload",), dlios)]
    base, _, accelerator = choice.rpartition("_")
    if os.sep in choice or choice in workload_names(config_dir) or base not in workload_names():
        return [f"workload={choice}"]
    known = accelerator in load([f"workload={base}"]).accelerators
    return [f"workload={base}", f"accelerator={accelerator}"] if known else [f"workload={choice}"]


def _with_time(folder: str) -> str:
    """Fill in hydra's `${now:FORMAT}`."""
    moment = datetime.now()
    folder = _NOW.sub(lambda match: moment.strftime(match[1]), folder)
    if "${" in folder:
        raise UserError(f"hydra.run.dir={folder}: only ${{now:FORMAT}} is filled in here; write the rest out")
    return folder


def _unused(folder: str) -> str:
    """Return the folder's name, with a number appended if the folder holds an earlier run."""
    free, number = folder, 1
    while os.path.exists(os.path.join(free, "summary.json")):
        number += 1
        free = f"{folder}-{number}"
    return free
