"""DLIO's files of a run of checkpoints: the figures of a published run come out of its times to the last digit."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.io_rows import IO_DTYPE, READ, WRITE
from dlemu.config import load
from dlemu.dlio.checkpoints import DlioCheckpoints
from dlemu.dlio.config import DlioFolders
from dlemu.dlio.results import write_results
from dlemu.machine.environment import HostFacts
from dlemu.results.exported import ExportedCheckpoints
from dlemu.results.live import RunJournal
from tests.dlio import published_checkpoints as published


def published_run(*phases: str) -> DlioCheckpoints:
    """Return the published run as dlemu would have measured it: each rank as slow as it was."""
    counts = [
        f"checkpoint.num_checkpoints_write={10 * ('write' in phases)}",
        f"checkpoint.num_checkpoints_read={10 * ('read' in phases)}",
    ]
    workload = load(["workload=llama3_8b", "checkpoint.checkpoint_folder=/mnt/ckpt", *counts])
    lines = {"write": published.SAVED, "read": published.LOADED}
    rows, now_ns = [], 1_000_000_000
    for phase in phases:
        for number in range(10):
            slowest = 0
            for rank in range(8):
                seconds = lines[phase].get(rank, lines[phase][0])[number]
                took_ns = round(seconds * 1e9)
                row = np.zeros(1, IO_DTYPE)
                row[["phase", "checkpoint", "rank"]] = (READ if phase == "read" else WRITE, number + 1, rank)
                row[["began_ns", "ended_ns"]] = (now_ns, now_ns + took_ns)
                rows.append(row)
                slowest = max(slowest, took_ns)
            now_ns += slowest + 5_000_000_000
    journal = RunJournal(
        hosts=(HostFacts(host=published.HOST, memory_bytes=405058699264, cpu_count=384),),
        rank_nodes=(0,) * 8,
        started_ns=0,
        ended_ns=now_ns,
        wall_clock_offset_ns=1_783_000_000_000_000_000,
    )
    plan = plan_checkpoint(workload.model, workload.checkpoint, 8)
    run = ExportedCheckpoints(workload=workload, journal=journal, plan=plan, rows=np.concatenate(rows))
    return DlioCheckpoints(exported=run)


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [
        (("write",), published.WRITE_METRIC),
        (("read",), published.READ_METRIC),
        (("write", "read"), published.WRITE_METRIC | published.READ_METRIC),
    ],
)
def test_the_published_figures_follow_from_the_published_times(
    phases: tuple[str, ...], wanted: dict[str, float]
) -> None:
    summary = published_run(*phases).summary()
    begun = datetime.fromisoformat(summary["start"])
    assert abs(begun - datetime.fromtimestamp(1_783_000_000)) < timedelta(milliseconds=1), "local time"
    assert summary["metric"] == pytest.approx(wanted, rel=1e-12)
    assert set(summary["metric"]) == set(wanted), "what did not take place is left out"
    assert (summary["num_accelerators"], summary["num_hosts"], summary["epochs"]) == (8, 1, 0)
    assert summary["host_memory_GB"] == [published.MEMORY_GIB]
    assert (summary["num_files_train"], summary["data_size_per_host_GB"]) == (8, 0.00048828125), "DLIO's defaults"


def test_all_files_are_written_as_dlio_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[str] = []
    monkeypatch.setattr("datagen.owned.remove_parts", lambda _, name: listings.append(name))
    run = published_run("write", "read")
    config = tmp_path / "dlio_config"
    write_results(DlioFolders(folder=str(tmp_path), config_folder=str(config)), run)
    of_ranks = {f"{rank}_{kind}.json" for rank in range(8) for kind in ("output", "per_epoch_stats")}
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "dlio.log", "dlio_config", *of_ranks}
    assert not of_ranks.intersection(listings), "the folder is not listed for each of the files in it"
    stats = json.loads((tmp_path / "3_per_epoch_stats.json").read_text())["1"]
    saves = [f"save_ckpt{number}" for number in range(1, 11)]
    assert list(stats) == ["start", *saves, *(name.replace("save", "load") for name in saves), "end"]
    assert stats["save_ckpt1"]["duration"] == 34.619219, "each rank its own time"
    assert stats["save_ckpt1"]["throughput"] == published.SIZE_GIB / 34.619219
    for name in saves:
        begun, ended = (datetime.fromisoformat(stats[name][end]) for end in ("start", "end"))
        assert stats[name]["duration"] == (ended - begun).total_seconds()
    output = json.loads((tmp_path / "0_output.json").read_text())
    empty: dict[str, object] = {name: {} for name in ("load", "proc", "throughput", "au", "compute")}
    assert output["1"] | {"start": "", "end": ""} == empty | {"start": "", "end": ""}
    assert output["hostname"] == published.HOST
    written = yaml.safe_load((config / "config.yaml").read_text())["workload"]
    assert written["checkpoint"]["num_checkpoints_read"] == 10
    assert set(written) == {"model", "framework", "workflow", "checkpoint"}, "it has no dataset"


def test_the_logs_figures_are_labelled_as_dlios() -> None:
    lines = published_run("write", "read").log().splitlines()
    assert [line for line in lines if line.startswith("[METRIC]")][1:-1] == [
        "[METRIC] Number of Simulated Accelerators: 8 ",
        "[METRIC] Checkpoint save duration (seconds): 34.0390 (0.2137)",
        "[METRIC] Checkpoint save I/O Throughput (GB/second): 3.0761 (0.0193)",
        "[METRIC] Checkpoint load duration (seconds): 21.0229 (0.5161)",
        "[METRIC] Checkpoint load I/O Throughput (GB/second): 4.9835 (0.1222)",
    ]
    text = "\n".join(lines)
    assert "Total number of parameters in the model: 8030261248" in text
    assert "Total checkpoint size: 104.704521 GB" in text
    assert "Finished saving checkpoint 1 for epoch 1 in 33.9920 s; Throughput: 3.0803 GB/s" in text
    assert "subset" not in text
