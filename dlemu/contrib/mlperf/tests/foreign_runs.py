"""Small result folders as versions of DLIO leave them: a loop of ranks and barriers played out, then written down.

The printed numbers are computed here by plain loops, apart from the audit's own formulas.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import yaml

C = 0.323
BATCH = 7
RECORD_BYTES = 146_600_628
START = datetime(2024, 9, 2, 13, 34, 44, 197451)


@dataclass(frozen=True)
class Rank:
    start: float
    end: float
    load: list[float]
    compute: list[float]

    @property
    def proc(self) -> list[float]:
        return [wait + computed for wait, computed in zip(self.load, self.compute, strict=True)]


def play(ranks: int, epochs: int, steps: int, seed: int, apart: float = 0.05) -> list[list[Rank]]:
    """Each epoch's ranks: they begin a little apart, wait for batches, compute too long and meet after every step."""
    draw = random.Random(seed)
    now, told = 3.0, []
    for _ in range(epochs):
        starts = [round(now + 0.3 + (draw.uniform(0, apart) if rank else 0.0), 6) for rank in range(ranks)]
        loads = [[draw.uniform(1, 3), *(draw.uniform(0, 0.02) for _ in range(steps - 1))] for _ in range(ranks)]
        slept = [[C + draw.uniform(0.0001, 0.002) for _ in range(steps)] for _ in range(ranks)]
        clock = list(starts)
        for step in range(steps):
            met = max(clock[rank] + loads[rank][step] + slept[rank][step] for rank in range(ranks)) + 0.004
            clock = [met] * ranks
        end = round(clock[0], 6)
        told.append([Rank(starts[rank], end, loads[rank], slept[rank]) for rank in range(ranks)])
        now = end + 0.01
    return told


def au_and_rate(rank: Rank, edition: str) -> tuple[float, float]:
    """AU in percent and samples/s as the edition's DLIO computes them."""
    total, steps = rank.end - rank.start, len(rank.load)
    if edition == "v1":
        return 100 * C * (steps - 1) / (total - rank.proc[0]), steps / total * BATCH
    if edition == "fork":
        counted = total - rank.proc[0]
        return 100 * sum(rank.compute[1:]) / counted, (steps - 1) / counted * BATCH
    last = steps - 1 if edition == "v3" else steps
    counted = total - rank.proc[0] - sum(rank.proc[last:])
    return 100 * sum(rank.compute[1:last]) / counted, (steps - 2) / counted * BATCH


def write_run(
    folder: Path,
    edition: str = "v1",
    *,
    ranks: int = 3,
    epochs: int = 2,
    steps: int = 20,
    seed: int = 0,
    kept: int = -1,
    apart: float = 0.05,
    closing: float = 0.0,
) -> dict[str, Any]:
    """Write a run; `kept` ranks keep their arrays, all of them when it is negative. Returns summary.json.

    With `closing` a checkpoint ends the last epoch's block a second time, so many seconds after the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = play(ranks, epochs, steps, seed, apart)
    told[-1] = [replace(rank, end=rank.end + closing) for rank in told[-1]]
    for rank in range(ranks if kept < 0 else kept):
        output = {str(number): _output(parts[rank], edition) for number, parts in enumerate(told, 1)}
        write(folder / f"{rank}_output.json", {"hostname": "node0", **output})
    for rank in range(1 if edition == "v1" else ranks):
        name = "per_epoch_stats.json" if edition == "v1" else f"{rank}_per_epoch_stats.json"
        write(folder / name, {str(number): _stats(parts[rank]) for number, parts in enumerate(told, 1)})
        if closing:
            _end_twice(
                folder / name, str(epochs), "ckpt1" if edition == "v1" else "save_ckpt1", told[-1][rank], closing
            )
    summary = _summary(told, edition, ranks, epochs, steps)
    write(folder / "summary.json", summary)
    config = folder / ("configs" if edition == "v1" else "dlio_config")
    config.mkdir(exist_ok=True)
    workload = workload_of(edition, ranks * steps * BATCH, epochs, C)
    (config / "config.yaml").write_text(yaml.safe_dump({"workload": workload}))
    (config / "overrides.yaml").write_text(yaml.safe_dump(["workload=unet3d_h100", "++workload.reader.read_threads=8"]))
    return summary


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def _output(rank: Rank, edition: str) -> dict[str, Any]:
    au, rate = au_and_rate(rank, edition)
    compute = [C] * len(rank.compute) if edition == "v1" else rank.compute
    arrays = {"load": rank.load, "proc": rank.proc, "compute": compute}
    return {
        **{key: {"block1": values} for key, values in arrays.items()},
        "au": {"block1": au},
        "throughput": {"block1": rate},
    }


def _stats(rank: Rank) -> dict[str, Any]:
    block = {"start": _stamp(rank.start), "end": _stamp(rank.end), "duration": f"{rank.end - rank.start:.2f}"}
    return {"start": _stamp(rank.start - 0.05), "block1": block, "end": _stamp(rank.end + 0.005), "duration": "1.00"}


def _end_twice(path: Path, epoch: str, checkpoint: str, rank: Rank, closing: float) -> None:
    stats = json.loads(path.read_text())
    stats[epoch]["block1"]["end"] = _stamp(rank.end - closing)
    stats[epoch][checkpoint] = {"start": _stamp(rank.end), "end": _stamp(rank.end + 1)}
    stats[epoch]["end"] = _stamp(rank.end + 1.1)
    write(path, stats)


def _stamp(seconds: float) -> str:
    return (START + timedelta(microseconds=round(seconds * 1e6))).isoformat(timespec="microseconds")


def metric_of(au: list[float], rate: list[float]) -> dict[str, Any]:
    mean_au, mean_rate, mib = fmean(au), fmean(rate), RECORD_BYTES / 2**20
    return {
        "train_au_percentage": au,
        "train_au_mean_percentage": mean_au,
        "train_au_meet_expectation": "success" if mean_au >= 90 else "fail",
        "train_au_stdev_percentage": pstdev(au),
        "train_throughput_samples_per_second": rate,
        "train_throughput_mean_samples_per_second": mean_rate,
        "train_throughput_stdev_samples_per_second": pstdev(rate),
        "train_io_mean_MB_per_second": mean_rate * mib,
        "train_io_stdev_MB_per_second": pstdev(rate) * mib,
    }


def _summary(told: list[list[Rank]], edition: str, ranks: int, epochs: int, steps: int) -> dict[str, Any]:
    per_rank = [[au_and_rate(rank, edition) for rank in parts] for parts in told]
    au = [sum(one[0] for one in parts) / ranks for parts in per_rank]
    rate = [sum(one[1] for one in parts) for parts in per_rank]
    return {
        "start": _stamp(0),
        "num_accelerators": ranks,
        "num_hosts": 1,
        "hostname": "node0",
        "metric": metric_of(au, rate),
        "num_files_train": ranks * steps * BATCH,
        "num_files_eval": 0,
        "num_samples_per_file": 1,
        "host_cpu_count": [8],
        "host_memory_GB": [64.0],
        "data_size_per_host_GB": ranks * steps * BATCH * RECORD_BYTES / 2**30,
        "epochs": epochs,
        "end": _stamp(told[-1][0].end + 1),
    }


def workload_of(edition: str, files: int, epochs: int, seconds: float) -> dict[str, Any]:
    """unet3d's workload file, whole, as v1.0 spelled it and as DLIO 2.x does."""
    old = edition == "v1"
    length = "record_length" if old else "record_length_bytes"
    after: dict[str, Any] = {"checkpoint_after_epoch": 5, "epochs_between_checkpoints": 2}
    return {
        "model": "unet3d" if old else {"name": "unet3d", "type": "cnn", "model_size": 499153191},
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True, "checkpoint": True} | ({"profiling": False} if old else {}),
        "dataset": {
            "format": "npz",
            "num_files_train": files,
            "num_samples_per_file": 1,
            length: RECORD_BYTES,
            f"{length}_stdev": 68341808,
            f"{length}_resize": 2097152,
        },
        "reader": {"data_loader": "pytorch", "batch_size": BATCH, "file_shuffle": "seed", "sample_shuffle": "seed"},
        "train": {"epochs": epochs, "computation_time": seconds},
        "checkpoint": {"checkpoint_folder": "/c", **after, **({"model_size": 499153191} if old else {})},
        "metric": {"au": 0.9},
    }
