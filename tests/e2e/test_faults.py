"""What a bad day gets: a clear message, an exit status, what was measured, and nobody left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dlemu.jobs.training.result import read_run
from dlemu.results import KILLED
from tests.datasets import small_disk
from tests.e2e.harness import (
    LONG,
    PYTORCH,
    assert_gone,
    dlemu,
    family,
    rank_of,
    small_run,
    start,
    steps,
    summary,
    until,
    until_it_trains,
    wait,
)

pytestmark = pytest.mark.slow


def started(folder: Path, dataset: Path, *changes: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a run that would go on for minutes; return it and its family once every rank trains."""
    process = start("train", *small_run(folder, dataset, *LONG, *changes))
    return process, until_it_trains(process, folder)


def assert_kept_but_incomplete(folder: Path) -> None:
    told = summary(folder)
    assert told["complete"] is False
    assert told["outcome"] == "no verdict"
    assert told["failure"]
    assert told["metrics"]["au_percent"]["mean"] > 0
    assert len(steps(folder)) >= 6
    assert not (folder / "live").exists()


def killed_rank(process: subprocess.Popen[str], copy: Path) -> str:
    victim = rank_of(process.pid, 1)
    victim.kill()
    return f"rank 1 (process {victim.pid}) was killed by SIGKILL"


def killed_worker(process: subprocess.Popen[str], copy: Path) -> str:
    victim = rank_of(process.pid, 2).children()[0]
    victim.kill()
    return f"worker 0 of rank 2 (process {victim.pid}) was killed by SIGKILL"


def stopped_workers(process: subprocess.Popen[str], copy: Path) -> str:
    """A worker that is stopped stands for a read that never returns."""
    for worker in rank_of(process.pid, 0).children():
        if worker.name() != "dlemu-recorder":  # that one may stand still without anybody waiting for long
            worker.suspend()
    return "has waited 5 s for a batch"


def truncated_file(process: subprocess.Popen[str], copy: Path) -> str:
    victim = sorted((copy / "train").iterdir())[20]
    os.truncate(victim, 5000)
    return str(victim)


def interrupted(process: subprocess.Popen[str], copy: Path) -> str:
    os.killpg(process.pid, signal.SIGINT)  # to everyone, as a terminal does
    return "interrupted"


def terminated(process: subprocess.Popen[str], copy: Path) -> str:
    os.killpg(process.pid, signal.SIGTERM)  # as a batch system does, a service or container that stops
    return "interrupted"


@pytest.mark.parametrize(
    ("happens", "changes", "status"),
    [
        (killed_rank, (), 128 + signal.SIGKILL),
        (killed_worker, (PYTORCH,), 3),
        (stopped_workers, ("timeout_seconds=5", PYTORCH), 3),
        (truncated_file, (), 2),
        (interrupted, (PYTORCH,), 128 + signal.SIGINT),
        (terminated, (PYTORCH,), 128 + signal.SIGTERM),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_ends_a_run_is_named_and_what_was_measured_is_kept(
    happens: Callable[[subprocess.Popen[str], Path], str],
    changes: tuple[str, ...],
    status: int,
    dataset: Path,
    tmp_path: Path,
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(dataset, copy)
    process, everyone = started(tmp_path / "run", copy, *changes)
    said = happens(process, copy)
    wait(process).assert_ended(status, said)
    assert_kept_but_incomplete(tmp_path / "run")
    assert_gone(everyone)


def test_a_killed_command_takes_its_ranks_and_workers_along(dataset: Path, tmp_path: Path) -> None:
    process, everyone = started(tmp_path / "run", dataset, PYTORCH)
    dlemu("report", str(tmp_path / "run")).assert_ended(2, "is still running")
    process.kill()
    process.communicate()
    assert_gone(everyone)
    run = read_run(str(tmp_path / "run"))
    assert len(run.rows) >= 6, "what was measured is a result"
    assert (run.summary.complete, run.summary.failure) == (False, KILLED)
    dlemu("train", *small_run(tmp_path / "run", dataset)).assert_ended(2, "before it was killed")


def test_a_storage_that_hangs_before_the_ranks_start_ends_the_run_in_time(dataset: Path, tmp_path: Path) -> None:
    changes = ("storage.storage_type=tests.faulty_storage", "+storage.storage_options.hang=3600", "timeout_seconds=2")
    ended = dlemu("train", *small_run(tmp_path / "run", dataset, *changes), PYTHONPATH=os.pathsep.join(sys.path))
    ended.assert_ended(3, "looking at the dataset", "took longer than 2 s (timeout_seconds)")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "tiny", "4m") as folder:
        yield folder


def test_a_full_disk_under_the_results_is_told_before_anything_is_measured(dataset: Path, tiny: Path) -> None:
    (tiny / "filler").write_bytes(bytes(4_190_000))
    ended = dlemu("train", *small_run(tiny / "run", dataset, "train.epochs=20000"))
    assert ended.status == 2
    assert "No space left" in ended.err or "full" in ended.err
    assert "output.folder" in ended.err
    assert "Traceback" not in ended.err


def test_a_disk_that_fills_up_while_results_are_written_loses_no_step(dataset: Path, tiny: Path) -> None:
    process = start("train", *small_run(tiny / "run", dataset, "train.epochs=8"))
    until_it_trains(process, tiny / "run")
    os.killpg(process.pid, signal.SIGSTOP)  # it is not to end before there is no room left
    with open(tiny / "filler", "wb", buffering=0) as filler:
        while True:
            try:
                if filler.write(bytes(4096)) < 4096:
                    break
            except OSError:
                break
    os.killpg(process.pid, signal.SIGCONT)
    ended = wait(process)
    ended.assert_ended(2, "disk is full", "live")
    assert "AU " in ended.out, "the result is printed, as it is complete"
    assert len(list((tiny / "run" / "live").glob("rank_*.steps"))) == 3, "the step logs stay"


def test_a_full_disk_under_the_checkpoint_is_told(dataset: Path, tiny: Path, tmp_path: Path) -> None:
    saving = ("workflow.checkpoint=true", f"checkpoint.checkpoint_folder={tiny}", "model.model_size_bytes=9000000")
    words = small_run(tmp_path / "run", dataset, *saving, "train.epochs=1")
    dlemu("train", *words).assert_ended(2, "checkpoint", "disk is full")
    assert_kept_but_incomplete(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["dataset.data_folder=/nowhere/to/be/found"], ["/nowhere/to/be/found", "    --make"]),
        (["reader.read_threads=400000"], ["file descriptors", "ulimit -n"]),
        (["dataset.record_length_bytes_resize=2000000000000"], ["MiB", "memory"]),
    ],
)
def test_a_mistake_gets_one_clear_message(changes: list[str], words: list[str], dataset: Path, tmp_path: Path) -> None:
    ended = dlemu("train", *small_run(tmp_path / "run", dataset, *changes))
    ended.assert_ended(2)
    assert len(ended.err.splitlines()) <= 4
    for word in words:
        assert word in ended.err
    assert not (tmp_path / "run").exists(), "nothing was measured, nothing is left"


def test_a_killed_generation_resumes_with_what_is_missing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = [*small_run(tmp_path / "run", data), "dataset.num_files_train=900", "dataset.record_length_bytes=90000"]
    process = start("datagen", *settings)
    until(lambda: len(list(data.glob("train/*.npz"))) > 100 or process.poll() is not None, "the first files")
    everyone = family(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(everyone)
    made = {path: path.stat().st_mtime_ns for path in data.glob("train/*.npz")}
    assert 100 < len(made) < 900
    dlemu("train", *settings).assert_ended(2, "never finished")
    resumed = dlemu("datagen", *settings)
    assert resumed.status == 0, resumed.err
    assert f"{len(made)} existed already" in resumed.out
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert len(list((data / "train").iterdir())) == 900, "nothing half-made is left"
    assert dlemu("datagen", "verify", *settings).status == 0


def test_a_read_that_fails_once_in_a_worker_ends_the_run_and_is_named(dataset: Path, tmp_path: Path) -> None:
    fault = (f"+storage.storage_options.{key}" for key in ("call=read", "at=20", "how=EIO"))
    changes = ("storage.storage_type=tests.faulty_storage", *fault, "train.epochs=20", PYTORCH)
    words = small_run(tmp_path / "run", dataset, *changes)
    dlemu("train", *words, PYTHONPATH=os.pathsep.join(sys.path)).assert_ended(2, "Input/output error", str(dataset))


@pytest.mark.root
def test_without_dev_shm_workers_say_so_and_threads_go_on(dataset: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs root")
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh")
    ended = dlemu("train", *small_run(tmp_path / "run", dataset, PYTORCH), launcher=hidden)
    ended.assert_ended(2, "/dev/shm can't be written (Read-only file system)")
    dlemu("train", *small_run(tmp_path / "threads", dataset, "train.epochs=1"), launcher=hidden).assert_ran()
    assert summary(tmp_path / "threads")["complete"] is True


def test_a_limit_on_address_space_is_named(dataset: Path, tmp_path: Path) -> None:
    limited = ("prlimit", f"--as={400 << 20}")
    dlemu("train", *small_run(tmp_path / "run", dataset), launcher=limited).assert_ended(2, "`ulimit -v")


IMPORTING = """
import signal, sys
from dlemu.__main__ import main

def look(event, arguments):
    if event == "import" and arguments[0] == "dlemu.cli":
        print("begun", flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what comes before the import is this program's own
sys.addaudithook(look)
main()
"""


def test_ctrl_c_while_the_program_is_imported_is_no_traceback(dataset: Path, tmp_path: Path) -> None:
    for seconds in (0.0, 0.05, 0.15, 0.4):
        process = start("-c", IMPORTING, "train", *small_run(tmp_path / "run", dataset), program=sys.executable)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        ended = wait(process)
        assert ended.status in (130, -signal.SIGINT)
        assert "Traceback" not in ended.err
