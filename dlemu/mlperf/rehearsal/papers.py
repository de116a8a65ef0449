"""What lies beside the runs of a rehearsal: metadata, sums, the other phases, the words that say what it is."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import yaml

from datagen.atomic import write_text
from datagen.manifest import Manifest
from dlemu import __version__
from dlemu.mlperf.check.dataset import SEPARATION
from dlemu.mlperf.check.files import V1_REPORT
from dlemu.mlperf.check.find import METADATA, STAMP_FORMAT
from dlemu.mlperf.datasize import Datasize
from dlemu.mlperf.dlio_config import dlio_hydra, dlio_workload
from dlemu.mlperf.rehearsal import NOTE
from dlemu.mlperf.rehearsal.outcome import Figures, sum_up
from dlemu.mlperf.rehearsal.plan import WARM_UP, Plan
from dlemu.mlperf.rehearsal.sequence import Attempt, finished

README = "README.txt"


def write_json(folder: str, name: str, content: Any) -> None:
    """Write a JSON file by rename; raises SpaceError."""
    write_text(folder, name, json.dumps(content, indent=2) + "\n")


def run_metadata(plan: Plan, attempt: Attempt, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a run's metadata under the keys that mlpstorage has, with the note that it is a rehearsal's."""
    figures = attempt.figures
    assert figures is not None  # only finished runs are laid out
    told = _metadata(plan, "run", attempt.stamp, figures.num_files)
    told["parameters"]["train"]["seed"] = attempt.seed
    told["num_processes"] = figures.accelerators
    told["override_parameters"] = dict(word.removeprefix("++workload.").split("=", 1) for word in overrides[1:])
    told["args"] |= {"num_accelerators": figures.accelerators, "client_host_memory_in_gb": figures.memory_gib_per_host}
    told["args"]["num_client_hosts"] = figures.hosts
    return told | {"invocation_start_time": figures.start, "invocation_end_time": figures.end, "exit_status": 0}


def _metadata(plan: Plan, command: str, stamp: str, num_files: int) -> dict[str, Any]:
    workload = plan.workload
    sections = dlio_workload(workload)
    sections["dataset"] = sections["dataset"] | {"num_files_train": num_files}
    return {
        "rehearsal": NOTE,
        "made_by": f"dlemu {__version__}",
        "edition": plan.edition.name,
        "benchmark_type": "training",
        "command": command,
        "model": plan.model,
        "accelerator": workload.accelerator,
        "run_datetime": stamp,
        "verification": plan.division,
        "num_processes": workload.ranks,
        "parameters": sections,
        "override_parameters": {},
        "args": {
            "model": plan.model,
            "accelerator_type": workload.accelerator,
            "data_dir": os.path.abspath(workload.dataset.data_folder),
            "results_dir": os.path.abspath(plan.tree),
        },
    }


def file_separation(plan: Plan) -> dict[str, Any]:
    """Return v3.0's record of whether data and results share a file system, by the device number of both."""
    data, results = os.path.abspath(plan.workload.dataset.data_folder), os.path.abspath(plan.tree)
    return {
        "version": 1,
        "method": "st_dev",
        "same_filesystem": same_file_system(data, results),
        "data_or_chkpt_path": data,
        "results_path": results,
        "data_or_chkpt_realpath": os.path.realpath(data),
        "results_realpath": os.path.realpath(results),
        "probed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "probed_by_rank": 0,
        "probed_by_host": platform.node(),
    }


def same_file_system(one: str, other: str) -> bool:
    """Say whether two folders that exist lie on one file system."""
    return os.stat(one).st_dev == os.stat(other).st_dev


def write_datasize(plan: Plan, answer: Datasize) -> None:
    """Write v3.0's datasize phase: the files that the rules want at the least."""
    if not plan.edition.checks_tree:
        return
    folder = os.path.join(plan.phases, "datasize")
    if os.path.isdir(folder) and os.listdir(folder):
        return  # a rehearsal that goes on
    stamp = datetime.now().strftime(STAMP_FORMAT)
    write_json(
        os.path.join(folder, stamp),
        f"training_{stamp}{METADATA}",
        _metadata(plan, "datasize", stamp, answer.bound.files),
    )


def write_datagen(plan: Plan, manifest: Manifest | None, said: str | None) -> None:
    """Write the datagen phase (v2.0, v3.0): what was made, or that it was there before.

    `said` is what `dlemu datagen` printed, None when it was not called.
    """
    if plan.edition.name == "1.0":
        return
    phase, workload = os.path.join(plan.phases, "datagen"), plan.workload
    if os.path.isdir(phase) and os.listdir(phase):
        return  # a rehearsal that goes on
    made_at, files = _made_at(plan, manifest)
    stamp = made_at.strftime(STAMP_FORMAT)
    folder = os.path.join(phase, stamp)
    there = f"the dataset was there before this rehearsal; it is complete: {files} files, made at {made_at.isoformat()}"
    told = said.strip() if said else there
    overrides = [f"workload={plan.model}_datagen", f"++workload.dataset.num_files_train={files}"]
    config = dlio_workload(workload)
    config["workflow"] = config["workflow"] | {"generate_data": True, "train": False, "checkpoint": False}
    _write_hydra(os.path.join(folder, "dlio_config"), folder, config, overrides)
    for name in ("dlio.log", "training_datagen.stdout.log"):
        write_text(folder, name, f"{told}\n")
    write_text(folder, "training_datagen.stderr.log", "")
    write_json(folder, f"training_{stamp}{METADATA}", _metadata(plan, "datagen", stamp, files))


def _made_at(plan: Plan, manifest: Manifest | None) -> tuple[datetime, int]:
    """Return when the dataset was made, local time, and of how many files."""
    dataset = plan.workload.dataset
    if manifest is None:
        return datetime.fromtimestamp(int(os.stat(dataset.data_folder).st_mtime)), dataset.num_files_train
    moment = datetime.fromisoformat(manifest.made_at).astimezone().replace(tzinfo=None)
    return moment, manifest.spec.num_files_train


def _write_hydra(folder: str, run_folder: str, config: Mapping[str, Any], overrides: list[str]) -> None:
    write_text(folder, "config.yaml", yaml.safe_dump({"workload": config}, sort_keys=False))
    write_text(folder, "overrides.yaml", yaml.safe_dump(overrides, sort_keys=False))
    hydra = dlio_hydra(run_folder, os.path.basename(folder), overrides)
    write_text(folder, "hydra.yaml", yaml.safe_dump(hydra, sort_keys=False))


def write_sums(plan: Plan, attempts: Sequence[Attempt]) -> None:
    """Write the sums over the measured runs: results.json (v3.0), mlperf_storage_report.json (v1.0)."""
    done = [found for label in plan.labels if (found := finished(attempts, label))]
    measured = {one.label: one.figures for one in done if one.label != WARM_UP and one.figures is not None}
    if not measured:
        return
    if plan.edition.checks_tree:
        write_json(plan.runs, "results.json", _results(plan, done))
    elif plan.edition.name == "1.0":
        write_json(plan.runs, V1_REPORT, _v1_report(plan, measured))


def _results(plan: Plan, done: Sequence[Attempt]) -> dict[str, Any]:
    figures = [one.figures for one in done if one.figures is not None and one.label != WARM_UP]
    told = sum_up(figures)
    return {
        "rehearsal": NOTE,
        "model": plan.model,
        "accelerator": plan.workload.accelerator,
        "num_accelerators": figures[0].accelerators,
        "runs": [{"run_datetime": one.stamp, "label": one.label} for one in done],
        "train_au_mean_percentage": told.au_dlio_mean_percent,
        "train_au_stdev_percentage": told.au_dlio_std_percent,
        "train_throughput_mean_samples_per_second": told.samples_per_second_mean,
        "train_throughput_stdev_samples_per_second": told.samples_per_second_std,
        "train_io_mean_MB_per_second": told.mib_per_second_mean,
        "train_io_stdev_MB_per_second": told.mib_per_second_std,
    }


def _v1_report(plan: Plan, measured: Mapping[str, Figures]) -> dict[str, Any]:
    """Return what v1.0's report.py makes of the runs, under its keys; what it calls MB is MiB."""
    told = sum_up(list(measured.values()))
    first = next(iter(measured.values()))
    same: dict[str, Any] = {
        "model": plan.model,
        "accelerator": plan.workload.accelerator,
        "train_num_accelerators": first.accelerators,
        "num_files_train": first.num_files,
        "num_samples_per_file": first.samples_per_file,
    }
    return {
        "rehearsal": NOTE,
        "overall": {
            **same,
            "num_benchmark_runs": told.runs,
            "train_throughput_mean_samples_per_second": told.samples_per_second_mean,
            "train_throughput_stdev_samples_per_second": told.samples_per_second_std,
            "train_throughput_mean_MB_per_second": told.mib_per_second_mean,
            "train_throughput_stdev_MB_per_second": told.mib_per_second_std,
        },
        "runs": {
            label.replace(" ", ""): {
                **same,
                "train_throughput_samples_per_second": one.samples_per_second,
                "train_throughput_MB_per_second": one.mib_per_second,
            }
            for label, one in measured.items()
        },
    }


def write_readme(plan: Plan) -> None:
    """Write what the tree is, for whoever finds it."""
    edition, pair = plan.edition.name, f"{plan.model} on {plan.workload.accelerator}"
    text = f"""{NOTE}

Laid out as MLPerf Storage v{edition} wants a result of {pair} in {plan.division.upper()}, by dlemu {__version__}.

- AU, samples/s and MB/s (MiB/s, really) in the files are by the formulas of DLIO 2.x, measured on dlemu's ranks.
- Each run shuffles with a seed of its own (train.seed in config.yaml); overrides.yaml leaves that out.
- systems/ holds a template with what the hosts told: fill in the rest, and add the pdf.
- There is no copy of the official code: mlpstorage adds it to a submission.
- What dlemu itself measured of each run, with its evidence, lies beside this tree, in runs/.
"""
    if plan.edition.checks_tree:
        text += f"- {SEPARATION} compares the device numbers of both folders.\n"
    write_text(plan.tree, README, text)
