"""Writes a rehearsal's tree as mlpstorage v3.0 would: finished runs, metadata, sums, phases, system description.

The system description has the keys of its systems/SYSTEM.yaml (https://github.com/mlcommons/storage).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import psutil
import yaml

from datagen.manifest import Manifest
from datagen.owned import scratch_folder
from dlemu import __version__
from dlemu.comm.environment import describe_host
from dlemu.contrib.mlperf.check.submission_tree import METADATA, SEPARATION, STAMP_FORMAT
from dlemu.contrib.mlperf.check.system_description import PLACEHOLDER
from dlemu.contrib.mlperf.check.tree_rules import CONFIG_FOLDER
from dlemu.contrib.mlperf.rehearsal import EDITION, NOTE
from dlemu.contrib.mlperf.rehearsal.attempts import Attempt
from dlemu.contrib.mlperf.rehearsal.datasize import Datasize
from dlemu.contrib.mlperf.rehearsal.run_figures import WARM_UP, RehearsalPlan, sum_up
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.dlio.config import dlio_hydra, dlio_workload
from dlemu.extend import SpaceError, write_text
from dlemu.results.wording import TRADEMARK
from dlemu.runner.child_run import LOG

README = "README.txt"
_SEED_OVERRIDE = "++workload.train.seed="
"""The rehearsal sets the seed of each run, as the rules require: config.yaml has it, the recorded overrides don't."""


def copy_into_tree(plan: RehearsalPlan, attempt: Attempt) -> str:
    """Copy a run into the tree and return its folder, which appears complete or not at all; raises SpaceError."""
    leaf = os.path.join(plan.runs, attempt.stamp)
    run = os.path.join(plan.folder, attempt.folder)
    try:
        os.makedirs(os.path.dirname(leaf), exist_ok=True)
        with scratch_folder(*os.path.split(leaf)) as part:
            source = os.path.join(run, "dlio")
            for name in sorted(os.listdir(source)):
                if os.path.isfile(os.path.join(source, name)):
                    shutil.copyfile(os.path.join(source, name), os.path.join(part, name))
            overrides = _copy_config(os.path.join(source, CONFIG_FOLDER), part, leaf)
            shutil.copyfile(os.path.join(run, LOG), os.path.join(part, "training_run.stdout.log"))
            write_text(part, "training_run.stderr.log", "both streams are in training_run.stdout.log\n")
            write_json(part, f"training_{attempt.stamp}{METADATA}", run_metadata(plan, attempt, overrides))
            write_json(part, SEPARATION, file_separation(plan.workload.dataset.data_folder, plan.tree))
            os.rename(part, leaf)
    except OSError as error:
        raise SpaceError(f"{leaf} could not be written: {error.strerror}; free some space, and continue") from error
    return leaf


def _copy_config(source: str, target: str, leaf: str) -> list[str]:
    """Write hydra's files and return the overrides, without the seed that the rehearsal set."""
    with open(os.path.join(source, "overrides.yaml")) as lines:
        overrides = [word for word in yaml.safe_load(lines) if not word.startswith(_SEED_OVERRIDE)]
    with open(os.path.join(source, "config.yaml")) as lines:
        _write_hydra(os.path.join(target, CONFIG_FOLDER), leaf, lines.read(), overrides)
    return overrides


def write_json(folder: str, name: str, content: Any) -> None:
    """Write a JSON file atomically; raises SpaceError."""
    write_text(folder, name, json.dumps(content, indent=2) + "\n")


def run_metadata(plan: RehearsalPlan, attempt: Attempt, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a run's metadata with mlpstorage's keys, and a note that a rehearsal wrote it."""
    figures = attempt.figures
    assert figures is not None  # only finished runs get into the tree
    metadata = _training_metadata(plan, "run", attempt.stamp, figures.num_files)
    metadata["parameters"]["train"]["seed"] = attempt.seed
    metadata["num_processes"] = figures.accelerators
    metadata["override_parameters"] = overridden(overrides)
    metadata["args"]["num_accelerators"] = figures.accelerators
    metadata["args"]["client_host_memory_in_gb"] = figures.memory_gib_per_host
    metadata["args"]["num_client_hosts"] = figures.hosts
    began = datetime.strptime(attempt.stamp, STAMP_FORMAT).isoformat()
    return metadata | {"invocation_start_time": began, "invocation_end_time": figures.end, "exit_status": 0}


def _training_metadata(plan: RehearsalPlan, command: str, stamp: str, num_files: int) -> dict[str, Any]:
    workload = plan.workload
    sections = dlio_workload(workload)
    sections["dataset"] = sections["dataset"] | {"num_files_train": num_files}
    return call_metadata(
        "training",
        command,
        stamp,
        division=plan.division,
        model=plan.model,
        accelerator=workload.accelerator,
        processes=workload.ranks,
        parameters=sections,
        args={
            "accelerator_type": workload.accelerator,
            "data_dir": workload.dataset.data_folder,
            "results_dir": os.path.abspath(plan.tree),
        },
    )


def call_metadata(
    benchmark: str,
    command: str,
    stamp: str,
    *,
    division: Division,
    model: str,
    accelerator: str,
    processes: int,
    parameters: Mapping[str, Any],
    args: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the metadata of any call with mlpstorage's keys, and a note that a rehearsal wrote it."""
    return {
        "rehearsal": NOTE,
        "made_by": f"dlemu {__version__}",
        "edition": EDITION,
        "benchmark_type": benchmark,
        "command": command,
        "model": model,
        "accelerator": accelerator,
        "run_datetime": stamp,
        "verification": division,
        "num_processes": processes,
        "parameters": parameters,
        "override_parameters": {},
        "args": {"model": model, **args},
    }


def overridden(words: Sequence[str]) -> dict[str, str]:
    """Return the overrides (`++workload.KEY=VALUE`) as the metadata hold them: KEY -> VALUE."""
    kept = [word for word in words if word.startswith("++workload.")]
    return dict(word.removeprefix("++workload.").split("=", 1) for word in kept)


def file_separation(data_folder: str, tree: str) -> dict[str, Any]:
    """Return v3.0's record of whether data and results share a file system: whether both device numbers are equal."""
    data, results = os.path.abspath(data_folder), os.path.abspath(tree)
    return {
        "version": 1,
        "method": "st_dev",
        "same_filesystem": same_file_system(data, results),
        "data_or_chkpt_path": data_folder,
        "results_path": results,
        "data_or_chkpt_realpath": os.path.realpath(data),
        "results_realpath": os.path.realpath(results),
        "probed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "probed_by_rank": 0,
        "probed_by_host": platform.node(),
    }


def same_file_system(left: str, right: str) -> bool:
    """Return whether two existing folders are on the same file system."""
    return os.stat(left).st_dev == os.stat(right).st_dev


def write_datasize(plan: RehearsalPlan, answer: Datasize, began_at: datetime) -> None:
    """Write the datasize phase, with the smallest number of files that the rules allow."""
    folder = os.path.join(plan.phases, "datasize")
    if os.path.isdir(folder) and os.listdir(folder):
        return  # a continued rehearsal
    stamp = began_at.strftime(STAMP_FORMAT)
    metadata = _training_metadata(plan, "datasize", stamp, answer.bound.files)
    write_json(os.path.join(folder, stamp), f"training_{stamp}{METADATA}", metadata)


def write_datagen(plan: RehearsalPlan, manifest: Manifest | None, output: str | None, began_at: datetime) -> None:
    """Write the datagen phase.

    `output` is what `dlemu datagen` printed, None if the dataset existed before. Such a dataset may be older than the
    rehearsal's datasize phase, which must come first: then the phase is dated `began_at`, and its log says when the
    dataset was really made.
    """
    phase, workload = os.path.join(plan.phases, "datagen"), plan.workload
    if os.path.isdir(phase) and os.listdir(phase):
        return  # a continued rehearsal
    made_at, files = _dataset_time_and_files(plan, manifest)
    stamp = max(made_at, began_at).strftime(STAMP_FORMAT)
    folder = os.path.join(phase, stamp)
    found = f"the dataset existed before this rehearsal; it is complete: {files} files, made at {made_at.isoformat()}"
    log = output.strip() if output else found
    overrides = [f"workload={plan.model}_datagen", f"++workload.dataset.num_files_train={files}"]
    config = dlio_workload(workload)
    config["dataset"] = config["dataset"] | {"num_files_train": files}
    config["workflow"] = config["workflow"] | {"generate_data": True, "train": False, "checkpoint": False}
    text = yaml.safe_dump({"workload": config}, sort_keys=False)
    _write_hydra(os.path.join(folder, CONFIG_FOLDER), folder, text, overrides)
    for name in ("dlio.log", "training_datagen.stdout.log"):
        write_text(folder, name, f"{log}\n")
    write_text(folder, "training_datagen.stderr.log", "")
    metadata = _training_metadata(plan, "datagen", stamp, files) | {"parameters": config}
    metadata["override_parameters"] = {"dataset.num_files_train": str(files)}
    write_json(folder, f"training_{stamp}{METADATA}", metadata)


def _dataset_time_and_files(plan: RehearsalPlan, manifest: Manifest | None) -> tuple[datetime, int]:
    """Return when the dataset was made, in local time, and its number of files."""
    dataset = plan.workload.dataset
    if manifest is None:
        return datetime.fromtimestamp(int(os.stat(dataset.data_folder).st_mtime)), dataset.num_files_train
    moment = datetime.fromisoformat(manifest.made_at).astimezone().replace(tzinfo=None)
    return moment, manifest.spec.num_files_train


def _write_hydra(folder: str, run_folder: str, config: str, overrides: list[str]) -> None:
    write_text(folder, "config.yaml", config)
    write_text(folder, "overrides.yaml", yaml.safe_dump(overrides, sort_keys=False))
    hydra = dlio_hydra(run_folder, os.path.basename(folder), overrides)
    write_text(folder, "hydra.yaml", yaml.safe_dump(hydra, sort_keys=False))


def write_sums(plan: RehearsalPlan, attempts: Sequence[Attempt]) -> None:
    """Write results.json, the sums over the measured runs."""
    done = [run for run in attempts if run.failure is None]
    figures = [run.figures for run in done if run.figures is not None and run.label != WARM_UP]
    if not figures:
        return
    outcome = sum_up(figures)
    sums = {
        "rehearsal": NOTE,
        "model": plan.model,
        "accelerator": plan.workload.accelerator,
        "num_accelerators": figures[0].accelerators,
        "runs": [{"run_datetime": run.stamp, "label": run.label} for run in done],
        "train_au_mean_percentage": outcome.au_dlio_mean_percent,
        "train_au_stdev_percentage": outcome.au_dlio_std_percent,
        "train_throughput_mean_samples_per_second": outcome.samples_per_second_mean,
        "train_throughput_stdev_samples_per_second": outcome.samples_per_second_std,
        "train_io_mean_MB_per_second": outcome.mib_per_second_mean,
        "train_io_stdev_MB_per_second": outcome.mib_per_second_std,
    }
    write_json(plan.runs, "results.json", sums)


def write_readme(plan: RehearsalPlan) -> None:
    """Write a README that says what the tree is."""
    pair = f"{plan.model} on {plan.workload.accelerator}"
    text = f"""{NOTE}

Written by dlemu {__version__} in the layout of MLPerf Storage v{EDITION}: {pair}, {plan.division.upper()}.

- AU, samples/s and MB/s (really MiB/s) in the files were measured on dlemu's ranks, by the formulas of DLIO 2.x.
- Each run shuffles with its own seed (train.seed in config.yaml), which overrides.yaml leaves out.
- systems/ holds a description of the system with what this host reported: fill in the rest by the edition's schema
  (`mlpstorage validate` checks it), and add the pdf.
- A copy of the official code is missing: mlpstorage adds it to a submission.
- dlemu's own results of each run are next to this tree, in runs/.
- {SEPARATION} compares the device numbers of the data and results folders.
"""
    write_text(plan.tree, README, f"{text}\n{TRADEMARK}\n")


def write_system(submission: str, system: str, hosts: int, memory_gib_per_host: float) -> None:
    """Write the system description to fill in, unless there is one already. Raises SpaceError."""
    folder = os.path.join(submission, "systems")
    name = f"{system}.yaml"
    if not os.path.exists(os.path.join(folder, name)):
        description = _description(system, hosts, memory_gib_per_host)
        write_text(folder, name, yaml.safe_dump(description, sort_keys=False))


def _description(system: str, hosts: int, memory_gib_per_host: float) -> dict[str, Any]:
    architecture = ("storage_location", "product_API", "client_footprint", "client_installation")
    capabilities = ("multi_host", "simultaneous_write", "simultaneous_read", "remap_time_in_seconds")
    return {
        "system_under_test": {
            "solution": {
                "submission_name": system,
                "friendly_description": PLACEHOLDER,
                "architecture": {"benchmark_API": "file"} | dict.fromkeys(architecture, PLACEHOLDER),
                "capabilities": dict.fromkeys(capabilities, PLACEHOLDER) | ({"multi_host": True} if hosts > 1 else {}),
                "usable_capacity_tib": PLACEHOLDER,
                "availability": PLACEHOLDER,
            },
            "deployment": PLACEHOLDER,
            "product_nodes": [_host_fields({})],
            "product_switches": [],
            "clients": [_host_fields(_client_facts(hosts, memory_gib_per_host))],
            "total_rack_units": PLACEHOLDER,
            "rack_power_supplies": [],
        }
    }


def _host_fields(known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a host: known values, and for the others the template's text."""
    chassis = ("model_name", "rack_units", "cpu_model", "cpu_qty", "cpu_cores", "memory_capacity", "power")
    return {
        "friendly_description": known.get("friendly_description", PLACEHOLDER),
        "quantity": known.get("quantity", PLACEHOLDER),
        "chassis": {key: known.get(key, PLACEHOLDER) for key in chassis},
        "networking": [],
        "drives": [],
        "operating_system": known.get("operating_system", {"name": PLACEHOLDER, "version": PLACEHOLDER}),
        "sysctl": [],
        "environment": known.get("environment", []),
    }


def _client_facts(hosts: int, memory_gib_per_host: float) -> dict[str, Any]:
    """Return the known fields of the clients: those of this host, as the rules require all hosts to be alike."""
    host = describe_host()
    limit = host.memory_limit_bytes
    limited = limit is not None and limit < host.memory_bytes
    return {
        "friendly_description": "runs the emulated accelerators",
        "quantity": hosts,
        "environment": [{"name": "memory.max", "value": f"memory.max = {limit}"}] if limited else [],
        "cpu_model": host.processor,
        "cpu_cores": psutil.cpu_count(logical=False) or host.cpu_count,
        "memory_capacity": max(1, round(memory_gib_per_host)),
        "operating_system": {"name": platform.system(), "version": host.kernel},
    }
