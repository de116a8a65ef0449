"""Small trees as the tools of MLPerf Storage leave them, valid by every rule of their edition.

The runs are written by `foreign_runs`, at 500 steps an epoch, each with waits of its own; a result of checkpoints has
the times that one published.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from dlemu.contrib.mlperf.tests import foreign_runs
from dlemu.contrib.mlperf.tests.foreign_runs import Rank, write
from tests.dlio import published_checkpoints as published

RANKS, STEPS = 4, 500
MEMORY_GIB = 8.0
"""Of the one host: 5 times as much is far less than 500 steps read, so neither bound is near."""
SCRIPT = "#!/bin/bash\n"
CODE = hashlib.md5(f"benchmark.sh{SCRIPT}".encode()).hexdigest()
"""Hash of the code image: its one file's name and content."""
HOST_KB = int(MEMORY_GIB * 2**20)
RATE = "train_throughput_mean_samples_per_second"
BEGIN = datetime(2026, 3, 1, 12, 0, 0)
STAMP = "%Y%m%d_%H%M%S"
PAIRS = {"2.0": ("h100", 0.323), "3.0": ("b200", 0.162)}


def make_tree(root: Path, edition: str, ranks: int = RANKS) -> Path:
    """Write a valid tree of the edition; returns its root."""
    org = root / "closed/acme"
    make_code(root) if edition == "3.0" else _code(org / "code")
    base = org / "results" / "box"
    runs = base / "training" / "unet3d" / "run"
    for number in range(6):
        model = root / "model"
        seconds = _model_run(model, edition, ranks, number)
        begin = BEGIN + timedelta(seconds=number * int(seconds * 1.2))
        _move_run(model, runs / begin.strftime(STAMP), edition, begin, number)
    _phases(runs.parent, edition, ranks)
    describe(org / "systems")
    return root


def edit(path: Path, change: Callable[[Any], object]) -> None:
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    else:
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(yaml.safe_dump(content))


def config_folder(run: Path) -> Path:
    return run / "dlio_config"


def _code(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmark.sh").write_text(SCRIPT)
    foreign_runs.write(folder / ".code-hash.json", {"hash": CODE, "algorithm": "md5-tree-v2"})


def _summaries(runs: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(runs.glob("*/summary.json"))}


def _results(runs: Path) -> dict[str, Any]:
    """The sums over the measured runs, as v3.0 keeps them."""
    measured = [told["metric"] for told in list(_summaries(runs).values())[1:]]
    return {key: statistics.fmean(metric[key] for metric in measured) for key in (RATE, "train_au_mean_percentage")}


def _model_run(folder: Path, edition: str, ranks: int, number: int) -> float:
    """Write one run, in which each wait is a little longer than in the run before; returns its length in seconds."""
    accelerator, seconds = PAIRS[edition]
    kind = {"2.0": "v2", "3.0": "v3"}[edition]
    with patch.multiple(foreign_runs, C=seconds, play=partial(_play, seconds, number)):
        foreign_runs.write_run(folder, kind, ranks=ranks, epochs=5, steps=STEPS)
    summary = json.loads((folder / "summary.json").read_text())
    begin, end = (datetime.fromisoformat(summary[key]) for key in ("start", "end"))
    edit(
        folder / "summary.json",
        lambda told: told.update(host_memory_GB=[MEMORY_GIB], host_meminfo={"MemTotal": f"{HOST_KB} kB"}),
    )
    _hydra(config_folder(folder), [f"workload=unet3d_{accelerator}", _FOLDER])
    return (end - begin).total_seconds()


_FOLDER = "++workload.dataset.data_folder=/data/unet3d"


def configured(leaf: Path, name: str, workload: Any, words: list[str]) -> None:
    _hydra(config_folder(leaf), words)
    (config_folder(leaf) / "config.yaml").write_text(yaml.safe_dump({"workload": workload}))
    for log in (f"{name}.stdout.log", f"{name}.stderr.log", "dlio.log"):
        (leaf / log).write_text("[OUTPUT]\n")


def _hydra(folder: Path, words: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "overrides.yaml").write_text(yaml.safe_dump(words))
    (folder / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"overrides": {"task": words}}}))


def _play(seconds: float, number: int, ranks: int, epochs: int, steps: int, *_: object) -> list[list[Rank]]:
    """Ranks in step that wait 0.1 s for the first batch, about 1 ms for each other one, and 1 ms at the barrier."""
    draw, compute = random.Random(number), [seconds + 0.0002] * steps
    longest = 0.1 + 0.0011 * (steps - 1) + sum(compute) + 0.001 * steps
    starts = [round(3.0 + epoch * (longest + 0.5), 6) for epoch in range(epochs)]
    return [
        [
            Rank(start + rank * 1e-5, start + longest - number * 0.01 - epoch * 1e-4 + rank * 1e-6, waits, compute)
            for rank in range(ranks)
            for waits in [[0.1, *(draw.uniform(0.0009, 0.0011) for _ in range(steps - 1))]]
        ]
        for epoch, start in enumerate(starts)
    ]


def _move_run(model: Path, leaf: Path, edition: str, begin: datetime, number: int) -> None:
    leaf.parent.mkdir(parents=True, exist_ok=True)
    model.rename(leaf)
    shift = begin - foreign_runs.START
    for path in leaf.glob("*.json"):
        if "output" not in path.name:
            path.write_text(json.dumps(moved(json.loads(path.read_text()), shift)))
    edit(config_folder(leaf) / "config.yaml", lambda told: _seeded(told["workload"], 100 + number))
    for name in ("training_run.stdout.log", "training_run.stderr.log", "dlio.log"):
        (leaf / name).write_text("[OUTPUT]\n")
    told = _metadata("run", edition, len(list(leaf.glob("*_output.json"))), leaf.name)
    config = yaml.safe_load((leaf / "dlio_config/config.yaml").read_text())
    foreign_runs.write(leaf / f"training_{leaf.name}_metadata.json", {**told, "parameters": config["workload"]})
    if edition == "3.0":
        _sidecars(leaf)


def _sidecars(leaf: Path) -> None:
    """What mlpstorage 3.0 leaves beside the run's own files."""
    separation = {"same_filesystem": False, "data_or_chkpt_path": "/data", "results_path": "/results"}
    foreign_runs.write(leaf / "fs_separation.json", separation)
    (leaf / ".mlps-code-image").write_text(f"md5-tree-v2:{CODE}\n")
    (leaf / "collector-staging").mkdir()
    foreign_runs.write(leaf / "collector-staging/cluster_info.json", {"node0": {"meminfo": {"MemTotal": HOST_KB}}})


def _seeded(workload: dict[str, Any], seed: int) -> None:
    workload["train"]["seed"] = seed
    workload["dataset"]["data_folder"] = "/data/unet3d"


def moved(value: Any, shift: timedelta) -> Any:
    if isinstance(value, dict):
        return {key: moved(item, shift) for key, item in value.items()}
    if isinstance(value, str) and value.startswith(("2024-", "2026-")):
        return moment(datetime.fromisoformat(value) + shift)
    return value


def _metadata(command: str, edition: str, ranks: int, stamp: str) -> dict[str, Any]:
    accelerator, is_run = PAIRS[edition][0], command == "run"
    began = moment(datetime.strptime(stamp, STAMP))
    overrides = {"dataset.num_files_train": str(_files(ranks))} if command == "datagen" else {}  # text, as typed
    overrides |= {"dataset.data_folder": "/data/unet3d"} if command != "datasize" else {}
    dataset = {"num_files_train": str(_files(ranks)), "num_samples_per_file": 1}
    args: dict[str, Any] = {"model": "unet3d", "command": command, "data_dir": "/data", "results_dir": "/results"}
    args |= {"hosts": ["node0"]} | ({"num_accelerators": ranks, "accelerator_type": accelerator} if is_run else {})
    told: dict[str, Any] = {
        "benchmark_type": "training",
        "command": command,
        "model": "unet3d",
        "accelerator": None if command == "datagen" else accelerator,
        "verification": "CLOSED" if edition == "3.0" else "closed",
        "num_processes": ranks,
        "run_datetime": stamp,
        "exit_status": 0,
        "executed_command": f"mpirun -n {ranks} -host node0:{ranks} dlio_benchmark",
        "parameters": {"dataset": {**dataset, "record_length_bytes": foreign_runs.RECORD_BYTES}},
        "override_parameters": overrides,
        "args": args,
    }
    if edition == "2.0":
        return told | {"run_result_output": "/results"}
    system = {"total_memory_bytes": HOST_KB * 1024, "num_hosts": 1}
    newer = {"invocation_start_time": began, "system_info": system, "runtime": 1e5 if is_run else 600}
    return told | newer | {"args": args | {"mode": "closed"}}


def call_metadata(
    leaf: Path, benchmark: str, model: str, phase: str, ranks: int | None, args: dict[str, Any], **more: Any
) -> Path:
    """Write what the tool keeps of every call, and which code it was."""
    told: dict[str, Any] = {"benchmark_type": benchmark, "model": model, "command": phase, "run_datetime": leaf.name}
    told |= {"num_processes": ranks, "accelerator": None, "parameters": {}, "override_parameters": {}}
    path = leaf / f"{benchmark}_{leaf.name}_metadata.json"
    foreign_runs.write(path, {**told, "args": {"model": model, **args}, **more})
    (leaf / ".mlps-code-image").write_text(f"md5-tree-v2:{CODE}")
    return path


def moment(when: datetime) -> str:
    return when.isoformat(timespec="microseconds")


def _files(ranks: int) -> int:
    return ranks * STEPS * foreign_runs.BATCH


def _phases(workload: Path, edition: str, ranks: int) -> None:
    for hours, phase in enumerate(("datagen",) if edition == "2.0" else ("datagen", "datasize"), 1):
        leaf = workload / phase / (BEGIN - timedelta(hours=hours)).strftime(STAMP)
        leaf.mkdir(parents=True)
        foreign_runs.write(leaf / f"training_{leaf.name}_metadata.json", _metadata(phase, edition, ranks, leaf.name))
        if edition == "3.0":
            (leaf / ".mlps-code-image").write_text(f"md5-tree-v2:{CODE}\n")
        if phase == "datagen":
            words = ["workload=unet3d_datagen", f"++workload.dataset.num_files_train={_files(ranks)}", _FOLDER]
            dataset = {"num_files_train": _files(ranks), "data_folder": "/data/unet3d"}
            configured(leaf, "training_datagen", {"model": {"name": "unet3d"}, "dataset": dataset}, words)
    if edition == "3.0":
        foreign_runs.write(workload / "run" / "results.json", _results(workload / "run"))


def client(memory: int = int(MEMORY_GIB), quantity: int = 1) -> dict[str, Any]:
    supply = {"unit_count": 2, "inlet_voltage": 230, "nameplate_power_watts": 800, "efficiency": "Platinum"}
    chassis = {"model_name": "R1", "cpu_model": "C1", "cpu_qty": 1, "cpu_cores": 8, "memory_capacity": memory}
    chassis |= {"rack_units": 1, "power": {"min_psus_active": 1, "psus_configured": [supply]}}
    system = {"name": "Linux", "version": "6.8"}
    return {"friendly_description": "a host", "quantity": quantity, "chassis": chassis, "operating_system": system}


def describe(folder: Path, name: str = "box", **capabilities: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.pdf").write_bytes(b"%PDF-1.4\n")
    (folder / "README.md").write_text("notes\n")
    able = {"multi_host": True, "simultaneous_write": True, "simultaneous_read": True, "remap_time_in_seconds": 0}
    architecture = {"storage_location": "local", "benchmark_API": "file", "product_API": "block"}
    architecture |= {"client_footprint": "open_source", "client_installation": "in_box"}
    solution = {
        "submission_name": name,
        "friendly_description": "one drive",
        "architecture": architecture,
        "capabilities": {name: value for name, value in (able | capabilities).items() if value is not None},
    }
    system = {"solution": solution, "deployment": "onprem", "clients": [client()]}
    told = {"system_under_test": {**system, "total_rack_units": 0}}  # of nodes and switches; clients don't count
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def make_code(root: Path) -> None:
    _code(root / f"acme/code-{CODE[:8]}")


MODEL = "llama3-8b"


def make_result(root: Path, model: str = MODEL, system: str = "box") -> Path:
    """Write both calls of the published run below `closed/acme/results/SYSTEM`; returns the model's folder."""
    folder = root / f"closed/acme/results/{system}/checkpointing/{model}"
    _call(folder / published.WRITE_STAMP, model, "save", published.WRITE_BEGAN, published.WRITE_ENDED)
    ended = datetime(2026, 7, 13, 11, 0, 8, 599685)
    _call(folder / published.READ_STAMP, model, "load", published.READ_BEGAN, ended)
    sums = published.WRITE_METRIC | published.READ_METRIC
    write(folder / "results.json", [sums])
    describe_checkpoints(folder)
    make_code(root)
    return folder


def describe_checkpoints(folder: Path, **changes: Any) -> Path:
    """Write the system's description, some of its capabilities changed (None: left out)."""
    path = describe(folder.parents[3] / "systems", folder.parents[1].name, **changes)
    memory = round(published.MEMORY_GIB)
    edit(path, lambda told: told["system_under_test"].update(clients=[client(memory)]))
    return path


def leaves(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _call(leaf: Path, model: str, kind: str, began: datetime, ended: datetime) -> None:
    leaf.mkdir(parents=True)
    workload: dict[str, Any] = published.official_yaml(model)
    workload["checkpoint"] |= {
        "checkpoint_folder": f"/mnt/{model}",
        "num_checkpoints_write": 10 * (kind == "save"),
        "num_checkpoints_read": 10 * (kind == "load"),
    }
    stated = ("num_checkpoints_read", "num_checkpoints_write", "checkpoint_folder")
    overrides = {f"checkpoint.{key}": workload["checkpoint"][key] for key in stated}
    words = [f"++workload.{key}={value}" for key, value in overrides.items()]
    configured(leaf, "checkpointing_run", workload, [f"workload={model.replace('-', '_')}", *words])
    call = {"accelerator": "b200", "parameters": workload, "override_parameters": overrides, "verification": "CLOSED"}
    args = {"checkpoint_folder": "/mnt", "results_dir": "/root/results"}
    call_metadata(leaf, "checkpointing", model, "run", 8, args, system_info={}, **call)
    separation = {"same_filesystem": False, "data_or_chkpt_path": "/mnt", "results_path": "/root/results"}
    write(leaf / "fs_separation.json", separation)
    times = published.SAVED if kind == "save" else published.LOADED
    for rank in range(8):
        write(leaf / f"{rank}_output.json", {"hostname": published.HOST})
        own = times.get(rank, [seconds - rank * 1e-3 - number * 1e-5 for number, seconds in enumerate(times[0])])
        write(leaf / f"{rank}_per_epoch_stats.json", {"1": _parts(kind, own, began)})
    hosts = {"num_hosts": 1, "hostname": published.HOST, "host_memory_GB": [published.MEMORY_GIB]}
    metric = published.WRITE_METRIC if kind == "save" else published.READ_METRIC
    times_told = {"start": moment(began), "end": moment(ended)}
    write(leaf / "summary.json", {"num_accelerators": 8, **hosts, "metric": metric, "epochs": 0, **times_told})


def _parts(kind: str, seconds: list[float], began: datetime) -> dict[str, Any]:
    parts = {}
    for number, taken in enumerate(seconds, 1):
        begin = began + timedelta(seconds=5 + (38 if kind == "save" else 26) * (number - 1))
        parts[f"{kind}_ckpt{number}"] = {
            "start": moment(begin),
            "end": moment(begin + timedelta(seconds=taken)),
            "duration": taken,
            "throughput": published.SIZE_GIB / taken,
        }
    return parts
