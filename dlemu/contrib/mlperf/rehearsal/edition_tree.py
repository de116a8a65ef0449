"""Writes a rehearsal's tree as mlpstorage v3.0 would: calls with their metadata, phases, the system's description."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from dlemu import __version__
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.audit.call_records import METADATA, SEPARATION, STAMP_FORMAT
from dlemu.contrib.mlperf.check.tree_rules import CONFIG_FOLDER, ORGANISATION_NAME
from dlemu.contrib.mlperf.rehearsal import DIVISION, EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.datasize import Datasize
from dlemu.contrib.mlperf.rules.training import GIB
from dlemu.extend import SpaceError, UserError, child_run, dlio_workload, environment, owned, write_text

_SEED_OVERRIDE = "++workload.train.seed="  # is not recorded: the rehearsal, not the submitter, sets each run's seed


@dataclass(frozen=True, kw_only=True)
class RehearsalPlan:
    """The workload and the system to rehearse, and the folders of the rehearsal."""

    organisation: str
    system: str
    workload: Workload
    overrides: tuple[str, ...]
    """Overrides for every run."""
    folder: str
    """The rehearsal's folder, with `tree/`, `runs/` and rehearsal.json."""
    launcher: str = ""
    """Command that starts each run, with `{ranks}` for the number of ranks; if empty, all ranks run on this host."""
    config_dir: str | None = None

    def __post_init__(self) -> None:
        """Raise UserError for names that the rules do not allow for folders."""
        allowed = "the rules allow only letters, digits, dots, dashes and underscores"
        for option, name in (("--org", self.organisation), ("--system", self.system)):
            if not ORGANISATION_NAME.match(name):
                raise UserError(f"{option} {name!r}: {allowed}")

    @property
    def tree(self) -> str:
        """Root of the tree in the edition's layout."""
        return os.path.join(self.folder, "tree")

    @property
    def submission(self) -> str:
        return os.path.join(self.tree, DIVISION, self.organisation)

    def result(self, benchmark: str, model: str) -> str:
        """Return the folder of a result: results/SYSTEM/BENCHMARK/MODEL of the submission."""
        return os.path.join(self.submission, "results", self.system, benchmark, model)

    def run(self, overrides: Sequence[str], folder: str, command: str) -> None:
        """Run `dlemu train` or `dlemu checkpoint` with these overrides, and wait for its end; raises DlemuError."""
        options = ["--config-dir", self.config_dir] if self.config_dir else []
        launcher = shlex.split(self.launcher.format(ranks=self.workload.ranks))
        child_run.run_train([*options, *overrides], folder, lambda: None, launcher, command)


def copy_into_tree(
    plan: RehearsalPlan, run: str, destination: str, metadata: dict[str, Any], times: tuple[str, str], data_folder: str
) -> None:
    """Copy the result folder `run` of a finished call into the tree as `destination`, complete or not at all.

    `times` are the call's start and end; `data_folder` is that of the dataset or the checkpoints. Raises SpaceError.
    """
    start, end = times
    source = os.path.join(run, "dlio")
    benchmark = metadata["benchmark_type"]
    try:
        os.makedirs(os.path.dirname(destination), exist_ok=True)
        with owned.scratch_folder(*os.path.split(destination)) as scratch:
            shutil.copytree(source, scratch, dirs_exist_ok=True)
            with open(os.path.join(source, CONFIG_FOLDER, "overrides.yaml")) as lines:
                overrides = [each for each in yaml.safe_load(lines) if not each.startswith(_SEED_OVERRIDE)]
            with open(os.path.join(source, CONFIG_FOLDER, "config.yaml")) as lines:
                _write_hydra(os.path.join(scratch, CONFIG_FOLDER), destination, lines.read(), overrides)
            log = f"{benchmark}_run.stdout.log"
            shutil.copyfile(os.path.join(run, child_run.LOG), os.path.join(scratch, log))
            write_text(scratch, f"{benchmark}_run.stderr.log", f"both streams are in {log}\n")
            of_workload = [each for each in overrides if each.startswith("++workload.")]
            parameters = dict(each.removeprefix("++workload.").split("=", 1) for each in of_workload)
            invocation = {"invocation_start_time": start, "invocation_end_time": end}
            metadata = {**metadata, "override_parameters": parameters, "exit_status": 0, **invocation}
            write_json(scratch, f"{benchmark}_{os.path.basename(destination)}{METADATA}", metadata)
            if os.path.isdir(data_folder):
                results = os.path.abspath(plan.tree)
                probe = {"version": 1, "method": "st_dev", "same_filesystem": same_file_system(data_folder, results)}
                folders = {"data_or_chkpt_path": data_folder, "results_path": results}
                write_json(scratch, SEPARATION, {**probe, **folders, "probed_by_host": platform.node()})
            os.rename(scratch, destination)
    except OSError as error:
        raise SpaceError(f"{destination} could not be written: {error.strerror or error}; free some space") from error


def write_json(folder: str, name: str, content: Any) -> None:
    """Write a JSON file atomically; raises SpaceError."""
    write_text(folder, name, json.dumps(content, indent=2) + "\n")


def training_metadata(plan: RehearsalPlan, command: str, stamp: str, num_files: int) -> dict[str, Any]:
    """Return the metadata of a training call; `command` is its phase, `num_files` the phase's number of files."""
    workload = plan.workload
    sections = dlio_workload(workload)
    sections["dataset"] = sections["dataset"] | {"num_files_train": num_files}
    args = {"accelerator_type": workload.accelerator, "data_dir": workload.dataset.data_folder}
    call = {"benchmark_type": "training", "command": command, "run_datetime": stamp, "parameters": sections}
    return call_metadata(plan, workload.model.name, workload.accelerator, call, args)


def call_metadata(
    plan: RehearsalPlan, model: str, accelerator: str, call: Mapping[str, Any], args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a call's metadata by mlpstorage's keys; `call` has those that differ between calls."""
    return {
        "rehearsal": NOTE,
        "made_by": f"dlemu {__version__}",
        "edition": EDITION,
        **call,
        "model": model,
        "accelerator": accelerator,
        "verification": DIVISION,
        "num_processes": plan.workload.ranks,
        "override_parameters": {},
        "args": {"model": model, "results_dir": os.path.abspath(plan.tree), **args},
    }


def same_file_system(left: str, right: str) -> bool:
    """Return whether two existing folders are on the same file system."""
    return os.stat(left).st_dev == os.stat(right).st_dev


def write_datasize(plan: RehearsalPlan, size: Datasize, began_at: datetime) -> None:
    """Write the datasize phase, with the smallest number of files that the rules allow."""
    folder = os.path.join(plan.result("training", plan.workload.model.name), "datasize")
    stamp = began_at.strftime(STAMP_FORMAT)
    metadata = training_metadata(plan, "datasize", stamp, size.bound.files)
    write_json(os.path.join(folder, stamp), f"training_{stamp}{METADATA}", metadata)


def write_datagen(plan: RehearsalPlan, began_at: datetime) -> None:
    """Write the datagen phase of the existing dataset, under the time of the rehearsal's start."""
    workload = plan.workload
    stamp = began_at.strftime(STAMP_FORMAT)
    files = workload.dataset.num_files_train
    folder = os.path.join(plan.result("training", workload.model.name), "datagen", stamp)
    log = f"the dataset is older than this rehearsal, and complete: {files} files"
    overrides = [f"workload={workload.model.name}_datagen", f"++workload.dataset.num_files_train={files}"]
    config = dlio_workload(workload)
    config["workflow"] = config["workflow"] | {"generate_data": True, "train": False, "checkpoint": False}
    text = yaml.safe_dump({"workload": config}, sort_keys=False)
    _write_hydra(os.path.join(folder, CONFIG_FOLDER), folder, text, overrides)
    for name in ("dlio.log", "training_datagen.stdout.log"):
        write_text(folder, name, f"{log}\n")
    write_text(folder, "training_datagen.stderr.log", "")
    metadata = training_metadata(plan, "datagen", stamp, files) | {"parameters": config}
    metadata["override_parameters"] = {"dataset.num_files_train": str(files)}
    write_json(folder, f"training_{stamp}{METADATA}", metadata)


def _write_hydra(folder: str, run_folder: str, config: str, overrides: list[str]) -> None:
    write_text(folder, "config.yaml", config)
    write_text(folder, "overrides.yaml", yaml.safe_dump(overrides, sort_keys=False))
    hydra = {"hydra": {"run": {"dir": run_folder}, "overrides": {"task": overrides}}}
    write_text(folder, "hydra.yaml", yaml.safe_dump(hydra, sort_keys=False))


def write_system(plan: RehearsalPlan, hosts: int, memory_gib_per_host: float) -> None:
    """Write the part of the system's description that a rehearsal knows, for identical hosts; raises SpaceError."""
    system, host = plan.system, environment.describe_host()
    client: dict[str, Any] = {"quantity": hosts}
    if host.memory_limit_bytes is not None and hosts == 1:  # that of a login node is not the hosts'
        client["environment"] = [{"name": "memory.max", "value": f"memory.max = {host.memory_limit_bytes}"}]
        memory_gib_per_host = max(memory_gib_per_host, host.memory_bytes / GIB)  # runs record it, not the limit
    client["chassis"] = {"memory_capacity": max(1, round(memory_gib_per_host))}
    solution = {"submission_name": system, "capabilities": {"multi_host": hosts > 1}, "friendly_description": "FILL IN"}
    description = {"system_under_test": {"solution": solution, "clients": [client]}}
    write_text(os.path.join(plan.submission, "systems"), f"{system}.yaml", yaml.safe_dump(description, sort_keys=False))
