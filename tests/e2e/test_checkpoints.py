"""Checkpoints as a user types them and as mlpstorage calls them, on ranks of a real mpirun."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

import dlemu
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import CheckpointJournal
from dlemu.results import KILLED
from dlemu.results.live import read_journal
from tests.e2e.harness import DLIO, MPIRUN, UNDER_MPI, assert_gone, family, start, until, wait
from tests.e2e.harness import dlemu as dlemu_command

mpi, needs_mpirun = UNDER_MPI
WORKLOAD = {
    "model": {
        "name": "llama_small",
        "type": "transformer",
        "num_layers": 2,
        "parallelism": {"tensor": 1, "pipeline": 1, "zero_stage": 3},
        "transformer": {"vocab_size": 512, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4},
    },
    "framework": "pytorch",
    "workflow": {"generate_data": False, "train": False, "checkpoint": True},
    "checkpoint": {"checkpoint_folder": "nowhere", "time_between_checkpoints": 0, "fsync": True},
}

pytestmark = pytest.mark.slow


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(WORKLOAD))
    return path


def words(workload: Path, writes: int, reads: int, *changes: str) -> list[str]:
    """Overrides of a run of 2 ranks whose folders lie beside its workload's file."""
    saving = [f"num_checkpoints_write={writes}", f"num_checkpoints_read={reads}"]
    saving += [f"checkpoint_folder={workload.parent / 'saved'}"]
    places = (f"workload={workload}", f"output.folder={workload.parent / 'result'}")
    return [*places, "ranks=2", "metric.ceiling_seconds=0.05", *(f"checkpoint.{one}" for one in saving), *changes]


@mpi
@needs_mpirun
def test_mlpstorage_has_checkpoints_written_then_read_by_two_calls(tmp_path: Path) -> None:
    (tmp_path / "configs" / "workload").mkdir(parents=True)
    (tmp_path / "configs" / "workload" / "llama3_8b.yaml").write_text(yaml.safe_dump(WORKLOAD))
    for name, writes, reads in (("write", 2, 0), ("read", 0, 2)):
        saving = [f"num_checkpoints_read={reads}", f"num_checkpoints_write={writes}"]
        saving += [f"checkpoint_folder={tmp_path / 'saved'}"]
        given = ["workload=llama3_8b", f"++hydra.run.dir={tmp_path / name}", "++hydra.output_subdir=dlio_config"]
        given += [*(f"++workload.checkpoint.{one}" for one in saving), f"--config-dir={tmp_path / 'configs'}"]
        ended = wait(start(*given, program=DLIO, launcher=[MPIRUN, "-n", "2"], cwd=tmp_path))
        assert ended.status == 0, ended.err
        verb = {"write": "save", "read": "load"}[name]
        assert f"[METRIC] Checkpoint {verb} I/O Throughput (GB/second):" in ended.out
        metric = json.loads((tmp_path / name / "summary.json").read_text())["metric"]
        assert metric[f"{verb}_checkpoint_duration_mean_seconds"] > 0
        stats = json.loads((tmp_path / name / "1_per_epoch_stats.json").read_text())
        assert f"{verb}_ckpt2" in stats["1"]
        result = dlemu.load_result(tmp_path / name / "dlemu")
        assert isinstance(result, CheckpointRun)
        assert result.summary.complete
        assert result.summary.ranks == 2
    assert sorted(os.listdir(tmp_path / "saved")) == ["global_epoch1_step1", "global_epoch1_step2"]


def test_a_run_that_was_killed_with_all_its_ranks_is_a_result(workload: Path, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    process = start("checkpoint", *words(workload, 100_000, 0, "checkpoint.keep_last=1", "checkpoint.fsync=false"))

    def third() -> bool:
        journal = read_journal(str(folder / "live"), CheckpointJournal)
        return process.poll() is not None or (journal is not None and len(journal.complete) >= 3)

    until(third, "three checkpoints")
    everyone = family(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(everyone)
    run = dlemu.load_result(folder)
    assert isinstance(run, CheckpointRun)
    summary = run.summary
    assert (summary.complete, summary.failure) == (False, KILLED)
    assert summary.write is not None
    written = {part.checkpoint for part in summary.write.checkpoints}
    assert len(written) >= 3
    assert written >= set(summary.kept)
    if "was being written" in summary.verdict:
        assert f"checkpoint {max(summary.kept) + 1} was being written" in summary.verdict
    dlemu_command("report", str(folder)).assert_ended(0)
    assert "INCOMPLETE" in (folder / "report.html").read_text()


def test_the_python_face_writes_and_reads(workload: Path) -> None:
    events: list[object] = []
    run = dlemu.checkpoint(words(workload, 1, 1, "checkpoint.verify=true"), on_progress=events.append)
    assert run.summary.write is not None
    assert run.summary.read is not None
    assert events
    with pytest.raises(dlemu.UserError, match=r"a run of checkpoints: use `dlemu checkpoint`"):
        dlemu.train({"workload": str(workload), "checkpoint.num_checkpoints_write": 1})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_folder_of_a_checkpoint_is_synced_once_and_counted(
    workload: Path, tmp_path: Path, *, asynchronous: bool
) -> None:
    """By the last of the host's ranks: file systems serialise the calls of one folder."""
    changes = ("ranks=4", f"checkpoint.asynchronous={str(asynchronous).lower()}")
    dlemu_command("checkpoint", *words(workload, 3, 0, *changes)).assert_ended(0)
    run = dlemu.load_result(tmp_path / "result")
    assert isinstance(run, CheckpointRun)
    rows = run.whole
    assert len(rows) == 3 * 4
    for checkpoint in (1, 2, 3):
        (synced,) = rows[(rows["checkpoint"] == checkpoint) & (rows["folder_sync_ns"] > 0)]
        others = rows[(rows["checkpoint"] == checkpoint) & (rows["rank"] != synced["rank"])]
        assert synced["fsync_ns"] > synced["folder_sync_ns"]
        assert (others["fsync_ns"] > 0).all()
