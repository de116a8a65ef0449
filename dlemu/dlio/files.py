"""The files that DLIO 2.x writes for any job: configuration, log while the job runs, and /proc facts of the host."""

from __future__ import annotations

import os
import re
from datetime import datetime

import yaml

from datagen import owned
from datagen.atomic import write_text
from datagen.errors import UserError
from datagen.withheld import redact_argv
from dlemu import __version__
from dlemu.config import load, workload_names
from dlemu.config.schema import Workload
from dlemu.dlio.config import LOG, DlioFolders, dlio_overrides, dlio_workload
from dlemu.results.wording import count

GIB = 2**30
_RESULT_FILE = re.compile(r"^(summary\.json|\d+_output\.json|\d+_per_epoch_stats\.json)$")


def begin_dlio_files(folders: DlioFolders, workload: Workload, ranks: int) -> str:
    """Write the configuration and a new log, and remove an earlier run's results; return the first lines of the log.

    So a run that fails leaves no stale results. Raises SpaceError, and UserError for results that dlemu did not write.
    """
    workflow = workload.workflow
    folder = folders.folder
    results = {name for name in os.listdir(folder) if _RESULT_FILE.match(name)} if os.path.isdir(folder) else set()
    if foreign := sorted(results - owned.claimed(folder)):
        raise UserError(
            f"{folder} holds results that dlemu did not write ({', '.join(foreign[:3])}): set hydra.run.dir, or "
            "output.folder, to a folder without any"
        )
    owned.remove_files(folder, results)  # the other claimed files belong to other commands of dlemu
    if workflow.train or workflow.checkpoint:
        os.makedirs(folder, exist_ok=True)
        owned.remove_parts(folder)
        rank_files = [f"{rank}_{name}.json" for rank in range(ranks) for name in ("output", "per_epoch_stats")]
        owned.claim(folder, "summary.json", *rank_files)
    write_config(folders, workload)
    phases = [name for name in ("generate_data", "train", "evaluation", "checkpoint") if getattr(workflow, name)]
    work = " and ".join(phases) or "nothing"
    title = f"dlemu {__version__} as a drop-in replacement for DLIO: {work} on {count(ranks, 'rank')}"
    text = f"[OUTPUT] {_now()} {title}\n" + "".join(f"[WARNING] {_now()} {note}\n" for note in workload.notes)
    write_text(folder, LOG, text)
    return text


def log_generation(folders: DlioFolders) -> str:
    """Append to the log that the data was generated, and return that line; DLIO writes no results for this phase."""
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
    overrides = redact_argv(dlio_overrides(workload, _shipped_workload(workload)) if given is None else given)
    hydra = {
        "run": {"dir": folders.folder},
        "mode": "RUN",
        "output_subdir": os.path.basename(folder),
        "overrides": {"hydra": [f"hydra.run.dir={folders.folder}"], "task": overrides},
        "job": {"name": "dlemu", "config_name": "config"},
    }
    contents = {"config": {"workload": dlio_workload(workload)}, "overrides": overrides, "hydra": {"hydra": hydra}}
    for name, content in contents.items():
        write_text(folder, f"{name}.yaml", yaml.safe_dump(content, sort_keys=False))


def _shipped_workload(workload: Workload) -> Workload:
    """Return the shipped workload of this name, with this accelerator if it has it; without one, all defaults."""
    if workload.model.name not in workload_names():
        return Workload()
    overrides = [f"workload={workload.model.name}"]
    if workload.accelerator in load(overrides).accelerators:
        overrides.append(f"accelerator={workload.accelerator}")
    return load(overrides)


def stamp(microseconds: int) -> str:
    """Return microseconds since 1970, UTC, as DLIO's time stamp in local time: %Y-%m-%dT%H:%M:%S.%f."""
    moment = datetime.fromtimestamp(microseconds // 1_000_000).replace(microsecond=microseconds % 1_000_000)
    return moment.isoformat(timespec="microseconds")


def _now() -> str:
    return datetime.now().isoformat(timespec="microseconds")
