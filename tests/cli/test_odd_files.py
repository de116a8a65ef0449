"""Whatever lies where a command reads a file, or wants a folder: it ends in time, with a message and status 2."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import dlemu
from datagen.generate import finish, generate, prepare
from datagen.manifest import PACKED_NAME
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import FOLDERS, open_storage
from dlemu.checkpoints.stored import NOTE
from dlemu.cli import main
from dlemu.contrib.mlperf.tests import foreign_runs
from dlemu.contrib.mlperf.tests.checkpoint_leaves import make_result
from dlemu.contrib.pack.packed_set import JOURNAL_NAME, PackedFile, PackedSet, layout_of, write_set
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.training.result import make_run
from dlemu.results.measured import write_measured, write_run, write_summary
from dlemu.studies import pages
from tests.results.handmade import CHECKPOINT_RUNS
from tests.results.test_received_names import write_answers
from tests.run.test_checkpoint_jobs import run as run_checkpoints
from tests.runs import make_job, make_log, with_telemetry

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
PACK = ("pack", "source=images", "target=t", "format=webdataset", "encode=keep", "--no-report")
REHEARSE = ("mlperf", "run", "workload=resnet50", "accelerator=h100", "dataset.data_folder=data")

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
            *(("pack", "pack.json"), ("document", "reproduce.json"), ("predict", "predict.json")),
            ("audit", "audit.json"),
        )
    },
    "a sweep that goes on": ("sweep/sweep.json", SWEEP),
    "a packing that goes on": ("pack/pack.json", (*PACK, "output.folder=pack")),
    "a search that goes on": ("size/size.json", (*SIZE, "output.folder=size")),
    "a rehearsal that goes on": ("new/rehearsal.json", (*REHEARSE, "output.folder=new")),
    "a document that goes on": ("document/reproduce.json", ("reproduce", "amax", "drives=.", "output.folder=document")),
    "a workload": ("mine.yaml", ("train", "workload=mine.yaml")),
    "a workload of a folder": ("own/workload/mine.yaml", ("train", "workload=mine", "--config-dir", "own")),
    "a manifest": ("data/dlemu.json", TRAIN),
    "a manifest, verified": ("data/dlemu.json", ("datagen", "verify", *DATA)),
    "a file of a dataset": ("data/train/img_1_of_4.npz", TRAIN),
    "a checkpoint's note": ("saved/global_epoch1_step1/" + NOTE, SAVE),
    "what a killed run left": ("killed/live/journal.json", (*TRAIN, "output.folder=killed")),
    "a list of packed files": (f"packed/{PACKED_NAME}", ("pack", "verify", "target=packed")),
    "a journal of packed files": (f"begun/{JOURNAL_NAME}", ("pack", "verify", "target=begun")),
    "a packed file": ("packed/train/img_0_of_1.npz", ("pack", "verify", "target=packed")),
}
"""What is read -> where it lies, and the command that reads it."""

FOLDERS_WANTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "results of train": ("place", (*TRAIN, "output.folder=place")),
    "results of checkpoint": ("place", (*SAVE[:-1], "output.folder=place")),
    "results of size": ("place", (*SIZE, "output.folder=place")),
    "results of sweep": ("place", (*SWEEP[:-1], "output.folder=place")),
    "results of predict": ("place", ("predict", *DATA, "--mb-per-second", "10", "output.folder=place")),
    "results of pack": ("place", (*PACK, "output.folder=place")),
    "results of probe": ("place", ("probe", ".", "--output", "place")),
    "results of a rehearsal": ("place", (*REHEARSE, "output.folder=place")),
    "results of a document": ("place", ("reproduce", "amax", "drives=.", "output.folder=place")),
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
    "images": ("place", ("pack", "source=place", "target=t", "format=webdataset", "encode=keep", "--no-report")),
    "packed files": ("place", ("pack", "verify", "target=place")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything in order."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        job = make_job(folder=str(place / "run"), steps=12)
        write_run(make_run(job, with_telemetry(make_log(job))))
        shutil.copytree(place / "run", place / "other")
        made = CHECKPOINT_RUNS["checkpoints_watched"]()
        saves = CheckpointRun(str(place / "saves"), made.facts, made.rows, made.progress, made.telemetry)
        write_measured(saves)
        write_summary(saves)
        write_answers(place)
        spec = DatasetSpec(
            data_folder="data", format="npz", num_files_train=4, num_samples_per_file=128, record_length_bytes=1000
        )
        prepare(spec)
        generate(spec)
        finish(spec)
        (place / "mine.yaml").write_text("model: {name: mine}\n")
        (place / "base.yaml").write_text("model: {name: base}\n")
        (place / "drawing.yaml").write_text("defaults: [base, _self_]\n")
        (place / "own" / "workload").mkdir(parents=True)
        shutil.copyfile("mine.yaml", place / "own" / "workload" / "mine.yaml")
        run_checkpoints(place, num_checkpoints_read="0")
        (place / "killed" / "live").mkdir(parents=True)
        (place / "killed" / "live" / "journal.json").touch()
        packed = PackedSet(
            about={},
            format="npz",
            ending="npz",
            files=1,
            images_per_file=1,
            made=(PackedFile(number=0, samples=1, source_bytes=1, bytes=1, crc32=0, payload_bytes=1),),
        )
        for name, target in ((PACKED_NAME, "packed"), (JOURNAL_NAME, "begun")):
            path = Path(layout_of(target, packed).path(0))
            path.parent.mkdir(parents=True)
            path.write_bytes(b"x")
            write_set(target, packed, open_storage(FOLDERS))
            os.rename(Path(target, PACKED_NAME), Path(target, name))
        (place / "images").mkdir()
        (place / "images" / "one.jpg").write_bytes(b"x")
        assert dlemu.load_result(place / "run")
    return place


@contextmanager
def in_time() -> Iterator[None]:
    """Fail where what is inside goes on for ever."""

    def over(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ended(command: tuple[str, ...], capfd: pytest.CaptureFixture[str], patched: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run a command line in this process; return its status and what it said."""
    patched.setattr(sys, "argv", ["dlemu", *command])
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with in_time(), pytest.raises(SystemExit) as end:
            main()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return int(end.value.code or 0), "".join(capfd.readouterr())


def try_all(
    place: Path,
    at: str,
    command: tuple[str, ...],
    kinds: list[Callable[[Path], None]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    path, wrong = place / at, []
    for kind in kinds:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        kind(path)
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(place)
            status, said = ended(command, capfd, patched)
        named = path.name in said or f"'{path.stem}'" in said  # another refusal has status 2 too
        if status != 2 or not named or "Traceback" in said:
            wrong.append(f"{kind.__name__}: status {status}: {said[-1500:]}")
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file(whole: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    at, command = FILES[name]
    place = Path(shutil.copytree(whole, tmp_path / "place"))
    try_all(place, at, command, KINDS, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS_WANTED)
def test_what_is_no_folder(whole: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    at, command = FOLDERS_WANTED[name]
    place = Path(shutil.copytree(whole, tmp_path / "place"))
    try_all(place, at, command, [kind for kind in KINDS if kind is not folder], capfd)


FILES_WRITTEN: dict[str, tuple[str, ...]] = {
    "a page": ("report", "run", "--output", "place"),
    "a page of several": ("report", "run", "other", "--output", "place"),
    "an audit's lines": ("audit", "run", "--csv", "place"),
    "an audit's table": ("audit", "run", "--parquet", "place"),
    "a check's lines": ("mlperf", "check", "run", "--csv", "place"),
    "a check's page": ("mlperf", "check", "run", "--html", "place"),
    "a workload": (
        "workload",
        "new",
        "place.yaml",
        "--data-folder",
        "images",
        "--batch-size",
        "1",
        "--workers",
        "1",
        "--step-seconds",
        "1",
        "--preprocess-seconds",
        "0",
    ),
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
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(place)
            patched.setattr(pages, "pictures", lambda *_, **__: [])  # two seconds each; the page is whole without
            status, said = ended(command, capfd, patched)
        assert (status, path.name in said, "Traceback" in said) == (2, True, False), (kind, said)
        after = path.lstat()
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.slow
def test_audits_and_checks_name_what_is_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """These judge whatever they find: what can't be read is a finding."""
    foreign_runs.write_run(tmp_path / "run", steps=12)
    tree = make_result(tmp_path / "tree")
    config = next(iter(sorted(tree.rglob("config.yaml"))))
    for kind in KINDS:
        for path, command in (
            (tmp_path / "run" / "summary.json", ("audit", str(tmp_path / "run"))),
            (config, ("mlperf", "check", str(tmp_path / "tree"))),
        ):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            kind(path)
            with pytest.MonkeyPatch.context() as patched:
                status, said = ended(command, capfd, patched)
            assert status in (0, 1, 2), (kind, command, said)
            assert "Traceback" not in said


def test_a_workload_of_very_many_keys_is_refused_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    many, bomb = tmp_path / "many.yaml", tmp_path / "bomb.yaml"
    many.write_text("scales: {a: {" + ", ".join(f"k{number}: 1" for number in range(50_000)) + "}}\n")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb.write_text("\n".join(lines))
    for path in (many, bomb):
        with pytest.MonkeyPatch.context() as patched:
            status, said = ended(("train", f"workload={path}"), capfd, patched)
        assert status == 2
        assert "keys and values (aliases expanded): wanted at most 10000" in said


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "../up", "..", "a/b"])
def test_a_models_name_is_no_path(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        status, said = ended(("train", f"model.name={name}"), capfd, patched)
    assert status == 2
    assert "wanted a name without /" in said
    assert not os.path.exists("/tmp/elsewhere")


@pytest.mark.parametrize("prefix", ["../../..", "a/b", "/abs", ".hidden"])
def test_a_manifest_names_no_file_outside_its_dataset(
    tmp_path: Path, prefix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = DatasetSpec(data_folder=str(tmp_path / "data"), format="npz", num_files_train=2)
    prepare(spec)
    generate(spec)
    finish(spec)
    manifest = tmp_path / "data" / "dlemu.json"
    manifest.write_text(manifest.read_text().replace('"file_prefix": "img"', f'"file_prefix": "{prefix}"'))
    given = [*SMALL, f"dataset.data_folder={tmp_path / 'data'}", "dataset.num_files_train=2"]
    for command in (("train", *given), ("datagen", "verify", *given)):
        with pytest.MonkeyPatch.context() as patched:
            status, said = ended(command, capfd, patched)
        assert status == 2
        assert f"dataset.file_prefix is '{prefix}'" in said
