"""Whatever lies where a command reads a file, or wants a folder: it ends in time, with a message and status 2."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import pytest

import dlemu
from dlemu.checkpoints.stored import NOTE
from dlemu.cli import main
from dlemu.report import page
from tests.datasets import make_dataset
from tests.parts import of_parts
from tests.results.handmade import saved_checkpoints
from tests.results.test_received_names import write_answers
from tests.run.test_checkpoint_jobs import run as run_checkpoints
from tests.runs import make_job, make_log, make_run, with_telemetry, write_run

MOST_SECONDS = 60
"""Far beyond what any of these takes, on a machine that does other things too."""
HUGE = 1 << 42


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_text("x")


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


def unreadable(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)


KINDS: list[Callable[[Path], None]] = [pipe, device, loop, folder, huge]
if os.geteuid() != 0:
    KINDS.append(unreadable)

DATA = (
    *("workload=default", "dataset.data_folder=data", "dataset.format=npz", "dataset.num_files_train=4"),
    *("dataset.num_samples_per_file=128", "dataset.record_length_bytes=1000", "reader.batch_size=1"),
)
SMALL = (*DATA, "reader.data_loader=threads", "telemetry.enabled=false", "metric.ceiling_seconds=0", "ranks=1")
TRAIN = ("train", *SMALL, "output.report=false")
SAVE = (
    *("checkpoint", "model.model_size_bytes=10000", "checkpoint.checkpoint_folder=saved", "output.report=false"),
    *("checkpoint.num_checkpoints_write=0", "checkpoint.num_checkpoints_read=1", "output.folder=new"),
)
SIZE = ("size", *DATA, "train.computation_time=0.01", "output.report=false")
SWEEP = ("sweep", *SMALL[:-1], "ranks=1,2", "output.folder=sweep")

FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a run's facts": ("run/facts.json", ("report", "run")),
    "a run's steps": ("run/steps.parquet", ("report", "run")),
    "a run's readings": ("run/telemetry.parquet", ("report", "run")),
    "a run's facts, predicted from": ("run/facts.json", ("predict", *DATA, "--from", "run", "output.folder=new")),
    "facts of checkpoints": ("saves/facts.json", ("report", "saves")),
    "rows of checkpoints": ("saves/checkpoints.parquet", ("report", "saves")),
    **{
        f"the answer of {kind}": (f"{kind}/{name}", ("report", kind))
        for kind, name in (
            *(("size", "size.json"), ("sweep", "sweep.json"), ("compare", "compare.json"), ("probe", "probe.json")),
            ("predict", "predict.json"),
        )
    },
    "a sweep that goes on": ("sweep/sweep.json", SWEEP),
    "a search that goes on": ("size/size.json", (*SIZE, "output.folder=size")),
    "a workload": ("mine.yaml", ("train", "workload=mine.yaml")),
    "a workload of a folder": ("own/workload/mine.yaml", ("train", "workload=mine", "--config-dir", "own")),
    "a manifest": ("data/dlemu.json", TRAIN),
    "a manifest, verified": ("data/dlemu.json", ("datagen", "verify", *DATA)),
    "a file of a dataset": ("data/train/img_1_of_4.npz", TRAIN),
    "a checkpoint's note": ("saved/global_epoch1_step1/" + NOTE, SAVE),
    "what a killed run left": ("killed/live/journal.json", (*TRAIN, "output.folder=killed")),
    **of_parts("FILES"),
}
"""What is read -> where it lies, and the command that reads it."""

FOLDERS_WANTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "results of train": ("place", (*TRAIN, "output.folder=place")),
    "results of checkpoint": ("place", (*SAVE[:-1], "output.folder=place")),
    "results of size": ("place", (*SIZE, "output.folder=place")),
    "results of sweep": ("place", (*SWEEP[:-1], "output.folder=place")),
    "results of predict": ("place", ("predict", *DATA, "--mb-per-second", "10", "output.folder=place")),
    "results of probe": ("place", ("probe", ".", "--output", "place")),
    "results of compare": ("place", ("compare", "run", "run", "--output", "place")),
    "a dataset": ("place", ("train", *SMALL, "dataset.data_folder=place")),
    "a dataset to make": ("place", ("datagen", *DATA, "dataset.data_folder=place")),
    "checkpoints": ("place", (*SAVE, "checkpoint.checkpoint_folder=place")),
    "checkpoints to write": (
        "place",
        (*SAVE, "checkpoint.checkpoint_folder=place", "checkpoint.num_checkpoints_write=1"),
    ),
    "a result": ("place", ("report", "place")),
    "workloads": ("place", ("train", "workload=mine", "--config-dir", "place")),
    **of_parts("FOLDERS"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        job = make_job(folder=str(place / "run"), steps=12)
        write_run(make_run(job, with_telemetry(make_log(job))))
        shutil.copytree(place / "run", place / "other")
        saved_checkpoints(place / "saves")
        write_answers(place)
        few = {"record_length_bytes": 1000, "record_length_bytes_stdev": 0}
        make_dataset(Path("data"), num_files_train=4, num_samples_per_file=128, **few)
        (place / "mine.yaml").write_text("model: {name: mine}\n")
        (place / "own" / "workload").mkdir(parents=True)
        shutil.copyfile("mine.yaml", place / "own" / "workload" / "mine.yaml")
        run_checkpoints(place, num_checkpoints_read="0")
        (place / "killed" / "live").mkdir(parents=True)
        (place / "killed" / "live" / "journal.json").touch()
        for put in of_parts("PLACED").values():
            put(place)
        (place / "images").mkdir()
        (place / "images" / "one.jpg").write_bytes(b"x")
        assert dlemu.load_result(place / "run")
    return place


@contextmanager
def in_time() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ended(command: tuple[str, ...], capfd: pytest.CaptureFixture[str], at: Path = Path()) -> tuple[int, str]:
    """Run a command line in this process, in a folder; return its status and what it said."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with chdir(at), patch.object(sys, "argv", ["dlemu", *command]), in_time(), pytest.raises(SystemExit) as end:
            main()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return int(end.value.code or 0), "".join(capfd.readouterr())


NO_FOLDERS = [kind for kind in KINDS if kind is not folder]
CASES = [
    *(pytest.param(*case, KINDS, id=f"no file: {name}") for name, case in FILES.items()),
    *(pytest.param(*case, NO_FOLDERS, id=f"no folder: {name}") for name, case in FOLDERS_WANTED.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("at", "command", "kinds"), CASES)
def test_what_is_no_file_or_no_folder_is_named(
    at: str,
    command: tuple[str, ...],
    kinds: list[Callable[[Path], None]],
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "place"))
    path, wrong = place / at, []
    for kind in kinds:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        kind(path)
        status, said = ended(command, capfd, place)
        named = path.name in said or f"'{path.stem}'" in said  # another refusal has status 2 too
        if status != 2 or not named or "Traceback" in said:
            wrong.append(f"{kind.__name__}: status {status}: {said[-1500:]}")
    assert wrong == []


FILES_WRITTEN: dict[str, tuple[str, ...]] = {
    "a page": ("report", "run", "--output", "place"),
    **of_parts("FILES_WRITTEN"),
}
"""What is written under a name that a user gives, and the command that writes it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES_WRITTEN)
def test_what_is_no_file_is_not_written_over(
    whole: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = FILES_WRITTEN[name]
    place = Path(shutil.copytree(whole, tmp_path / "place"))
    path = place / next(word for word in command if word.startswith("place"))
    for kind in (pipe, device, loop, folder):
        kind(path)
        before = path.lstat()
        with patch.object(page, "figures", lambda _: []):  # two seconds each; the page is whole without
            status, said = ended(command, capfd, place)
        assert (status, path.name in said, "Traceback" in said) == (2, True, False), (kind, said)
        after = path.lstat()
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_workload_of_very_many_keys_is_refused_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    many, bomb = tmp_path / "many.yaml", tmp_path / "bomb.yaml"
    many.write_text("scales: {a: {" + ", ".join(f"k{number}: 1" for number in range(50_000)) + "}}\n")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb.write_text("\n".join(lines))
    for path in (many, bomb):
        status, said = ended(("train", f"workload={path}"), capfd)
        assert status == 2
        assert "keys and values (aliases expanded): wanted at most 10000" in said


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "../up", "..", "a/b"])
def test_a_models_name_is_no_path(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, said = ended(("train", f"model.name={name}"), capfd)
    assert status == 2
    assert "wanted a name without /" in said
    assert not os.path.exists("/tmp/elsewhere")


@pytest.mark.parametrize("prefix", ["../../..", "a/b", "/abs", ".hidden"])
def test_a_manifest_names_no_file_outside_its_dataset(
    tmp_path: Path, prefix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make_dataset(tmp_path / "data", num_files_train=2)
    manifest = tmp_path / "data" / "dlemu.json"
    manifest.write_text(manifest.read_text().replace('"file_prefix": "img"', f'"file_prefix": "{prefix}"'))
    given = [*SMALL, f"dataset.data_folder={tmp_path / 'data'}", "dataset.num_files_train=2"]
    for command in (("train", *given), ("datagen", "verify", *given)):
        status, said = ended(command, capfd)
        assert status == 2
        assert f"file_prefix is '{prefix}'" in said
