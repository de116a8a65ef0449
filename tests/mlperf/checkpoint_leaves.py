"""A checkpointing result as mlpstorage of v3.0 leaves it, with the times that one published."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from tests.mlperf import published_checkpoints as published

MODEL = "llama3-8b"


def make_result(root: Path, model: str = MODEL) -> Path:
    """Write both calls of the published run below `closed/acme/results/box`; returns the model's folder."""
    folder = root / "closed/acme/results/box/checkpointing" / model
    _leaf(folder / published.WRITE_STAMP, model, "save", published.WRITE_BEGAN, published.WRITE_ENDED)
    ended = datetime(2026, 7, 13, 11, 0, 8, 599685)
    _leaf(folder / published.READ_STAMP, model, "load", published.READ_BEGAN, ended)
    (folder / "results.json").write_text("[]")
    describe(folder)
    return folder


def describe(folder: Path, **changes: Any) -> Path:
    """Write what v3.0's description tells of the system's capabilities, some changed (None: left out)."""
    able = {"multi_host": True, "simultaneous_write": True, "simultaneous_read": True, "remap_time_in_seconds": 0}
    told = {name: value for name, value in (able | changes).items() if value is not None}
    path = folder.parents[3] / "systems/box.yaml"
    path.parent.mkdir(exist_ok=True)
    solution = {"submission_name": "box", "capabilities": told}
    path.write_text(yaml.safe_dump({"system_under_test": {"solution": solution}}))
    return path


def leaves(folder: Path) -> list[Path]:
    """Return the folders of the calls, in order."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _leaf(leaf: Path, model: str, kind: str, began: datetime, ended: datetime) -> None:
    (leaf / "dlio_config").mkdir(parents=True)
    for name in ("checkpointing_run.stdout.log", "checkpointing_run.stderr.log", "dlio.log"):
        (leaf / name).write_text("")
    workload: dict[str, Any] = published.official_yaml(model)
    workload["checkpoint"] |= {
        "checkpoint_folder": f"/mnt/{model}",
        "num_checkpoints_write": 10 * (kind == "save"),
        "num_checkpoints_read": 10 * (kind == "load"),
    }
    overrides = {
        "checkpoint.num_checkpoints_read": workload["checkpoint"]["num_checkpoints_read"],
        "checkpoint.num_checkpoints_write": workload["checkpoint"]["num_checkpoints_write"],
        "checkpoint.checkpoint_folder": f"/mnt/{model}",
    }
    (leaf / "dlio_config/config.yaml").write_text(yaml.safe_dump({"workload": workload}))
    words = [f"++workload.{key}={value}" for key, value in overrides.items()]
    (leaf / "dlio_config/overrides.yaml").write_text(yaml.safe_dump(["workload=llama3_8b", *words]))
    (leaf / "dlio_config/hydra.yaml").write_text("{}")
    metadata = {
        "benchmark_type": "checkpointing",
        "model": model,
        "command": "run",
        "run_datetime": leaf.name,
        "num_processes": 8,
        "accelerator": None,
        "parameters": workload,
        "override_parameters": overrides,
        "system_info": {},
        "args": {"model": model, "checkpoint_folder": f"/mnt/{model}", "results_dir": "/root/results"},
        "verification": "closed",
    }
    _write(leaf / f"checkpointing_{leaf.name}_metadata.json", metadata)
    times = published.SAVED if kind == "save" else published.LOADED
    for rank in range(8):
        _write(leaf / f"{rank}_output.json", {"hostname": published.HOST})
        _write(leaf / f"{rank}_per_epoch_stats.json", {"1": _parts(kind, times.get(rank, times[0]), began)})
    _write(
        leaf / "summary.json",
        {
            "start": _stamp(began),
            "num_accelerators": 8,
            "num_hosts": 1,
            "hostname": published.HOST,
            "metric": published.WRITE_METRIC if kind == "save" else published.READ_METRIC,
            "host_memory_GB": [published.MEMORY_GIB],
            "epochs": 0,
            "end": _stamp(ended),
        },
    )


def _parts(kind: str, seconds: list[float], began: datetime) -> dict[str, Any]:
    parts = {}
    for number, taken in enumerate(seconds, 1):
        begin = began + timedelta(seconds=5 + 40 * (number - 1))
        parts[f"{kind}_ckpt{number}"] = {
            "start": _stamp(begin),
            "end": _stamp(begin + timedelta(seconds=taken)),
            "duration": taken,
            "throughput": published.SIZE_GIB / taken,
        }
    return parts


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=4))
