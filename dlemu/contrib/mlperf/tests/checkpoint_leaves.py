"""A checkpointing result as mlpstorage of v3.0 leaves it, with the times that one published."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from dlemu.contrib.mlperf.tests import golden
from dlemu.contrib.mlperf.tests.foreign_runs import write
from dlemu.contrib.mlperf.tests.golden import moment
from tests.dlio import published_checkpoints as published

MODEL = "llama3-8b"


def make_result(root: Path, model: str = MODEL, system: str = "box") -> Path:
    """Write both calls of the published run below `closed/acme/results/SYSTEM`; returns the model's folder."""
    folder = root / f"closed/acme/results/{system}/checkpointing/{model}"
    _leaf(folder / published.WRITE_STAMP, model, "save", published.WRITE_BEGAN, published.WRITE_ENDED)
    ended = datetime(2026, 7, 13, 11, 0, 8, 599685)
    _leaf(folder / published.READ_STAMP, model, "load", published.READ_BEGAN, ended)
    sums = published.WRITE_METRIC | published.READ_METRIC
    write(folder / "results.json", [sums])
    describe(folder)
    golden.make_code(root)
    return folder


def describe(folder: Path, **changes: Any) -> Path:
    """Write the system's description, some of its capabilities changed (None: left out)."""
    path = golden.describe(folder.parents[3] / "systems", folder.parents[1].name, **changes)
    memory = round(published.MEMORY_GIB)
    golden.edit(path, lambda told: told["system_under_test"].update(clients=[golden.client(memory)]))
    return path


def leaves(folder: Path) -> list[Path]:
    """Return the folders of the calls, in order."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _leaf(leaf: Path, model: str, kind: str, began: datetime, ended: datetime) -> None:
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
    golden.configured(leaf, "checkpointing_run", workload, [f"workload={model.replace('-', '_')}", *words])
    call = {"accelerator": "b200", "parameters": workload, "override_parameters": overrides, "verification": "CLOSED"}
    args = {"checkpoint_folder": "/mnt", "results_dir": "/root/results"}
    golden.call_metadata(leaf, "checkpointing", model, "run", 8, args, system_info={}, **call)
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
