"""The files that DLIO 2.x writes for any job: configuration, log while the job runs, and /proc facts of the host."""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any

import yaml

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import UserError
from datagen.withheld import without_secrets
from dlemu import __version__
from dlemu.config import load, workload_names
from dlemu.config.schema import Workload
from dlemu.dlio.config import LOG, DlioFolders, dlio_hydra, dlio_overrides, dlio_workload

GIB = 2**30
_RESULT = re.compile(r"^(summary\.json|\d+_output\.json|\d+_per_epoch_stats\.json)$")


def begin_dlio_files(folders: DlioFolders, workload: Workload, ranks: int) -> str:
    """Write what hydra and DLIO write first, remove an earlier run's results, and return the log's first lines.

    So a run that fails leaves its log and configuration, and no stale results of an earlier run. Raises SpaceError.
    """
    flow = workload.workflow
    _replace_results(folders.folder, ranks if flow.train or flow.checkpoint else 0)
    write_config(folders, workload)
    phases = [name for name in ("generate_data", "train", "evaluation", "checkpoint") if getattr(flow, name)]
    what, on = " and ".join(phases) or "nothing", "1 rank" if ranks == 1 else f"{ranks} ranks"
    text = f"[OUTPUT] {_now()} dlemu {__version__} as a drop-in replacement for DLIO: {what} on {on}\n"
    text += "".join(f"[WARNING] {_now()} {note}\n" for note in workload.notes)
    write_text(folders.folder, LOG, text)
    return text


def _replace_results(folder: str, ranks: int) -> None:
    """Remove an earlier dlemu run's results and claim the names of the new ones, one pair per rank (0 ranks: none).

    Raises UserError if the folder, which others may use too, holds results that dlemu did not write.
    """
    there = {name for name in os.listdir(folder) if _RESULT.match(name)} if os.path.isdir(folder) else set()
    others = sorted(there - owned.claimed(folder))
    if others:
        raise UserError(
            f"{folder} holds results that dlemu did not write ({', '.join(others[:3])}): set hydra.run.dir, or "
            "output.folder, to a folder without any"
        )
    owned.remove_files(folder, there)  # only these: other claimed files belong to other commands
    if not ranks:
        return
    os.makedirs(folder, exist_ok=True)
    results = [f"{rank}_{what}.json" for rank in range(ranks) for what in ("output", "per_epoch_stats")]
    owned.claim(folder, "summary.json", *results)


def log_generation(folders: DlioFolders) -> str:
    """Append to the log that the data was generated, and return the line: DLIO writes no results for that phase."""
    line = f"[OUTPUT] {_now()} Generation done\n"
    with open(os.path.join(folders.folder, LOG), "a") as log:
        log.write(line)
    return line


def write_config(folders: DlioFolders, workload: Workload) -> None:
    """Write config.yaml, overrides.yaml and hydra.yaml, unless `config_folder` is None."""
    folder = folders.config_folder
    if folder is None:
        return
    given = folders.overrides
    overrides = without_secrets(dlio_overrides(workload, _base(workload)) if given is None else given)
    write_text(folder, "config.yaml", _yaml({"workload": dlio_workload(workload)}))
    write_text(folder, "overrides.yaml", _yaml(overrides))
    write_text(folder, "hydra.yaml", _yaml(dlio_hydra(folders.folder, os.path.basename(folder), overrides)))


def stamp(microseconds: int) -> str:
    """Return DLIO's time stamp, local time: %Y-%m-%dT%H:%M:%S.%f."""
    moment = datetime.fromtimestamp(microseconds // 1_000_000).replace(microsecond=microseconds % 1_000_000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%dT%H:%M:%S.%f")


def _base(workload: Workload) -> Workload:
    """Return the workload that the overrides are relative to: the shipped one of that name, or else all defaults."""
    if workload.model.name not in workload_names():
        return Workload()
    name = f"workload={workload.model.name}"
    shipped = load([name])
    known = workload.accelerator in shipped.accelerators  # it may be only in the user's own table
    return load([name, f"accelerator={workload.accelerator}"]) if known else shipped


def proc_facts(name: str) -> dict[str, str]:
    """Return the `key: value` lines of a file in /proc (of repeated keys the last line); empty without such a file."""
    path = os.path.join("/proc", name)
    if not os.path.exists(path):
        return {}
    with open(path) as lines:
        pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {key.strip(): value.strip() for key, value in pairs if key.strip() != "processor"}


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False)
