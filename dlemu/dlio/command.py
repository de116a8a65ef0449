"""DLIO's command line: hydra overrides that select a workload, change its settings and set the folder for its files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from datagen import owned
from datagen.errors import UserError
from dlemu.config import load, workload_names
from dlemu.config.loading import DEFAULT_WORKLOAD
from dlemu.config.overrides import override, parse
from dlemu.config.schema import Workload
from dlemu.dlio.config import OWN_FOLDER, DlioFolders

_NOW = re.compile(r"\$\{now:([^}]*)\}")
_TIME = "${now:%Y-%m-%d}-${now:%H-%M-%S}"


def load_command(argv: Sequence[str], config_dir: str | None) -> tuple[Workload, DlioFolders]:
    """Return the workload that the overrides request, with its `output.folder`, and the folders for DLIO's files.

    DLIO's files go where DLIO writes them: into the workload's `output.folder`, else into hydra's run folder, which is
    `hydra_log/MODEL/TIME` by default. dlemu's own files go into a subfolder `dlemu`. Raises UserError.
    """
    choice, settings = parse(argv)
    hydra = {setting.path[1:]: setting.value for setting in settings if setting.path[0] == "hydra"}
    overrides = [setting.text for setting in settings if setting.path[0] != "hydra"]
    workload = load([*_workload_overrides(choice, config_dir), *overrides], config_dir=config_dir)
    default_folder = workload.output.folder or _with_time(f"hydra_log/{workload.model.name}/{_TIME}")
    run_folder = hydra.get(("run", "dir"))
    hydra_folder = default_folder if run_folder is None else _with_time(os.path.expanduser(str(run_folder)))
    folder = workload.output.folder or hydra_folder
    subfolder = hydra.get(("output_subdir",), ".hydra")  # hydra's default
    folders = DlioFolders(
        folder=folder,
        config_folder=None if subfolder is None else os.path.join(hydra_folder, str(subfolder)),
        overrides=(f"workload={choice}", *overrides) if choice else tuple(overrides),
    )
    candidates = owned.numbered(os.path.join(folder, OWN_FOLDER))
    own_folder = next(path for path in candidates if not os.path.exists(os.path.join(path, "summary.json")))
    return replace(workload, output=replace(workload.output, folder=own_folder)), folders


def _workload_overrides(choice: str, config_dir: str | None) -> list[str]:
    """Return dlemu's overrides for DLIO's `workload=CHOICE`.

    - A workload of DLIO that dlemu lacks, or names otherwise, is a file of this package: the path of that file, unless
      CONFIG_DIR has a file of the same name.
    - unet3d_h100, as DLIO has a file for each accelerator: `workload=unet3d accelerator=h100`, if dlemu has these.
    - A path, a user's file in CONFIG_DIR/workload, and any other name: `workload=CHOICE`, which `load` checks.
    """
    choice = choice or DEFAULT_WORKLOAD
    if os.sep in choice:
        return [f"workload={choice}"]
    file = os.path.join("workload", f"{choice}.yaml")
    shipped_path = os.path.join(os.path.dirname(__file__), file)
    has_user_file = config_dir is not None and os.path.exists(os.path.join(config_dir, file))
    if os.path.exists(shipped_path) and not has_user_file:
        return [override(("workload",), shipped_path)]
    base, _, accelerator = choice.rpartition("_")
    is_plain_name = choice in workload_names(config_dir) or base not in workload_names()
    if is_plain_name or accelerator not in load([f"workload={base}"]).accelerators:
        return [f"workload={choice}"]
    return [f"workload={base}", f"accelerator={accelerator}"]


def _with_time(folder: str) -> str:
    """Return a folder with hydra's `${now:FORMAT}` filled in. Raises UserError for other references."""
    moment = datetime.now()
    folder = _NOW.sub(lambda match: moment.strftime(match[1]), folder)
    if "${" in folder:
        raise UserError(f"hydra.run.dir={folder}: only ${{now:FORMAT}} is filled in here; write the rest out")
    return folder
