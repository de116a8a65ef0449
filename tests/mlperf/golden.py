"""Small trees as the tools of MLPerf Storage leave them, valid by every rule of their edition.

The runs are written by `foreign_runs`, at 500 steps an epoch, each with waits of its own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from tests.mlperf import foreign_runs
from tests.mlperf.foreign_runs import Rank

RANKS, STEPS = 4, 500
MEMORY_GIB = 8.0
"""Of the one host: 5 times as much is far less than 500 steps read, so neither bound is near."""
CODE = "0123abcd" + "0" * 24
"""Hash of the code image."""
RATE = "train_throughput_mean_samples_per_second"
BEGIN = datetime(2026, 3, 1, 12, 0, 0)
STAMP = "%Y%m%d_%H%M%S"
PAIRS = {"1.0": ("h100", 0.323), "2.0": ("h100", 0.323), "3.0": ("b200", 0.162)}


def make_tree(root: Path, edition: str, ranks: int = RANKS) -> Path:
    """Write a valid tree of the edition; returns its root."""
    org = root / ("Closed" if edition == "1.0" else "closed") / "acme"
    _code(root / f"acme/code-{CODE[:8]}" if edition == "3.0" else org / "code")
    base = org / "results" / "box"
    runs = base / "unet3d-h100" if edition == "1.0" else base / "training" / "unet3d" / "run"
    for number in range(1 if edition == "1.0" else 0, 6):
        model = root / "model"
        seconds = _model_run(model, edition, ranks, number)
        begin = BEGIN + timedelta(seconds=number * int(seconds * 1.2))
        name = f"run{number}" if edition == "1.0" else begin.strftime(STAMP)
        _move_run(model, runs / name, edition, begin, number)
    if edition == "1.0":
        foreign_runs.write(runs / "mlperf_storage_report.json", _v1_report(runs))
    else:
        _phases(runs.parent, edition, ranks)
    _system(org / "systems", edition)
    return root


def runs(root: Path) -> list[Path]:
    """The folders of the runs, in order."""
    return sorted(path.parent for path in root.rglob("summary.json"))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON or YAML file."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    else:
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(yaml.safe_dump(content))


def config_folder(run: Path) -> Path:
    """Where hydra's files lie."""
    return run / "configs" if (run / "configs").is_dir() else run / "dlio_config"


def _code(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "benchmark.sh").write_text("#!/bin/bash\n")
    foreign_runs.write(folder / ".code-hash.json", {"hash": CODE, "algorithm": "md5-tree-v2"})


def _summaries(runs: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(runs.glob("*/summary.json"))}


def _v1_report(runs: Path) -> dict[str, Any]:
    """What report.py makes of the runs."""
    rates = {name: told["metric"][RATE] for name, told in _summaries(runs).items()}
    overall = {
        "num_benchmark_runs": len(rates),
        "train_num_accelerators": str(next(iter(_summaries(runs).values()))["num_accelerators"]),
        RATE: statistics.fmean(rates.values()),
        "train_throughput_stdev_samples_per_second": statistics.pstdev(rates.values()),
    }
    rows = {name: {"train_throughput_samples_per_second": rate} for name, rate in rates.items()}
    return {"overall": overall, "runs": rows}


def _results(runs: Path) -> dict[str, Any]:
    """The sums over the measured runs, as v3.0 keeps them."""
    measured = [told["metric"] for told in list(_summaries(runs).values())[1:]]
    return {key: statistics.fmean(metric[key] for metric in measured) for key in (RATE, "train_au_mean_percentage")}


def _model_run(folder: Path, edition: str, ranks: int, number: int) -> float:
    """Write one run, in which each wait is a little longer than in the run before; returns its length in seconds."""
    accelerator, seconds = PAIRS[edition]
    kind = {"1.0": "v1", "2.0": "v2", "3.0": "v3"}[edition]
    with patch.multiple(foreign_runs, C=seconds, play=partial(_play, seconds, number)):
        foreign_runs.write_run(folder, kind, ranks=ranks, epochs=5, steps=STEPS)
    summary = json.loads((folder / "summary.json").read_text())
    begin, end = (datetime.fromisoformat(summary[key]) for key in ("start", "end"))
    edit(
        folder / "summary.json",
        lambda told: told.update(host_memory_GB=[MEMORY_GIB], host_cpu_count=[8], num_files_eval=0),
    )
    config = config_folder(folder)
    (config / "overrides.yaml").write_text(yaml.safe_dump([f"workload=unet3d_{accelerator}"]))
    (config / "hydra.yaml").write_text("hydra: {}\n")
    return (end - begin).total_seconds()


def _play(seconds: float, number: int, ranks: int, epochs: int, steps: int, *_: object) -> list[list[Rank]]:
    """Ranks in step that wait 0.1 s for the first batch, 1 ms for each other one, and 1 ms at the barrier."""
    load, compute = [0.1] + [0.001 + number * 1.7e-6] * (steps - 1), [seconds + 0.0002] * steps
    length = sum(load) + sum(compute) + 0.001 * steps
    starts = [round(3.0 + epoch * (length + 0.5), 6) for epoch in range(epochs)]
    return [[Rank(start, round(start + length, 6), load, compute)] * ranks for start in starts]


def _move_run(model: Path, leaf: Path, edition: str, begin: datetime, number: int) -> None:
    leaf.parent.mkdir(parents=True, exist_ok=True)
    model.rename(leaf)
    shift = begin - foreign_runs.START
    for path in leaf.glob("*.json"):
        if "output" not in path.name:
            path.write_text(json.dumps(moved(json.loads(path.read_text()), shift)))
    edit(config_folder(leaf) / "config.yaml", lambda told: _seeded(told["workload"], 100 + number))
    if edition == "1.0":
        return
    for name in ("training_run.stdout.log", "training_run.stderr.log", "dlio.log"):
        (leaf / name).write_text("")
    foreign_runs.write(
        leaf / f"training_{leaf.name}_metadata.json", _metadata("run", edition, len(list(leaf.glob("*_output.json"))))
    )
    if edition == "3.0":
        foreign_runs.write(leaf / "fs_separation.json", {"same_filesystem": False})
        (leaf / ".mlps-code-image").write_text(f"md5-tree-v2:{CODE}\n")


def _seeded(workload: dict[str, Any], seed: int) -> None:
    workload["train"]["seed"] = seed
    workload["dataset"]["data_folder"] = "/data/unet3d"


def moved(value: Any, shift: timedelta) -> Any:
    """Move every time stamp."""
    if isinstance(value, dict):
        return {key: moved(item, shift) for key, item in value.items()}
    if isinstance(value, str) and value.startswith(("2024-", "2026-")):
        return (datetime.fromisoformat(value) + shift).isoformat(timespec="microseconds")
    return value


def _metadata(command: str, edition: str, ranks: int) -> dict[str, Any]:
    accelerator, _ = PAIRS[edition]
    return {
        "benchmark_type": "training",
        "command": command,
        "model": "unet3d",
        "accelerator": accelerator,
        "verification": "closed",
        "num_processes": ranks,
        "parameters": {
            "dataset": {
                "num_files_train": str(_files(ranks)),  # text, as typed
                "num_samples_per_file": 1,
                "record_length_bytes": foreign_runs.RECORD_BYTES,
            },
            "reader": {"batch_size": foreign_runs.BATCH},
        },
        "override_parameters": {},
        "args": {"data_dir": "/data/unet3d", "results_dir": "/results", "hosts": ["node0"]},
    }


def _files(ranks: int) -> int:
    return ranks * STEPS * foreign_runs.BATCH


def _phases(workload: Path, edition: str, ranks: int) -> None:
    for phase in ("datagen",) if edition == "2.0" else ("datasize", "datagen"):
        leaf = workload / phase / (BEGIN - timedelta(hours=1)).strftime(STAMP)
        leaf.mkdir(parents=True)
        foreign_runs.write(leaf / f"training_{leaf.name}_metadata.json", _metadata(phase, edition, ranks))
        if phase == "datagen":
            for name in ("training_datagen.stdout.log", "training_datagen.stderr.log", "dlio.log"):
                (leaf / name).write_text("")
            config = leaf / "dlio_config"
            config.mkdir()
            settings = {"workload": {"model": {"name": "unet3d"}, "dataset": {"num_files_train": _files(ranks)}}}
            (config / "config.yaml").write_text(yaml.safe_dump(settings))
            (config / "overrides.yaml").write_text(yaml.safe_dump(["workload=unet3d_datagen"]))
            (config / "hydra.yaml").write_text("hydra: {}\n")
    if edition == "3.0":
        foreign_runs.write(workload / "run" / "results.json", _results(workload / "run"))


def _system(folder: Path, edition: str) -> None:
    folder.mkdir(parents=True)
    (folder / "box.pdf").write_bytes(b"%PDF-1.4\n")
    clients = [{"quantity": 1, "chassis": {"memory_capacity": int(MEMORY_GIB)}}]
    solution = {"submission_name": "box", "capabilities": {"multi_host": True}}
    told = {"system_under_test": {"solution": solution, "clients": clients}}
    if edition == "1.0":
        (folder / "box.json").write_text(json.dumps(told))
    else:
        (folder / "box.yaml").write_text(yaml.safe_dump(told))
