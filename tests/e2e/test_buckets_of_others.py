"""Objects and unfinished uploads of others, put below every prefix that a command uses: all are there afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlemu.metrics.verdict import COMPLETED
from tests.e2e.harness import Ended, dlemu, small_run, start, until, wait, without
from tests.e2e.test_checkpoints import workload as workload
from tests.object_stores import KEYS, S3, fault, own_server, upload_of_others

pytestmark = pytest.mark.slow
SAVED = "saved/llama"
FILES = 2
MEGABYTES = 17
"""Of a file, so that it is uploaded in parts."""


class Others:
    def __init__(self, server: Any) -> None:
        self._server = server
        self._objects: dict[str, bytes] = {}
        self._uploads: dict[str, Any] = {}

    def put(self, *more: str) -> None:
        """Put objects below each prefix there is, and `more`, and begin uploads to each key there is."""
        ours = [key for key in self._server.objects if key not in self._objects]
        folders = {"", "data/", "data/set/", "data/set/train/", "data/set/valid/", "saved/", f"{SAVED}/", *more}
        for key in ours:
            folders.update(key[: at + 1] for at, character in enumerate(key) if character == "/")
        for folder in sorted(folders):
            names = [".mine", ".mine.upload", ".mine.part", ".part"]
            if not folder.endswith(("train/", "valid/")):  # where a file of another name is refused, or one of the set
                names += ["notes.txt", "mine.part", "below/notes.txt"]
            for name in names:
                self._objects.setdefault(f"{folder}{name}", f"of others: {folder}{name}".encode())
        for key in (*ours, *self._objects, *(f"data/set/train/img_{n}_of_{FILES}.npz" for n in range(FILES))):
            self._uploads.setdefault(f"upload-of-others-{key}", upload_of_others(key))
        self._server.objects |= self._objects
        self._server.uploads |= self._uploads

    def changed(self) -> list[str]:
        objects = [key for key, data in self._objects.items() if self._server.objects.get(key) != data]
        uploads = [number for number, upload in self._uploads.items() if self._server.uploads.get(number) != upload]
        return objects + uploads

    @property
    def ours(self) -> tuple[set[str], set[str]]:
        """What there is beside that: keys, and keys of uploads."""
        uploads = {upload.key for number, upload in self._server.uploads.items() if number not in self._uploads}
        return set(self._server.objects) - set(self._objects), uploads


@pytest.fixture
def server() -> Iterator[Any]:
    with own_server() as served:
        yield served


def settings_of(server: Any, folder: Path, *changes: str) -> list[str]:
    """Words of a run of one rank on a small dataset in the server's bucket."""
    shape = ("format=npz", f"num_files_train={FILES}", f"record_length_bytes={MEGABYTES}000000")
    words = [f"dataset.{one}" for one in (*shape, "record_length_bytes_stdev=0")]
    words += ["reader.batch_size=1", "reader.read_threads=1", "metric.scaling_seconds=0"]
    small = small_run(folder, Path("data/set"), *S3(server.endpoint, folder).settings, *words)
    return [*without(small, "ranks", *(change.partition("=")[0] for change in changes)), "ranks=1", *changes]


def run(*words: str) -> Ended:
    return dlemu(*words, cwd=None, **KEYS)


def interrupted(server: Any, at: Callable[[Any], bool], how: int, *words: str) -> Ended:
    """Run a command, let the request hang that is the one, and end it there."""
    hangs: list[Any] = []

    def decide(request: Any) -> Any:
        if not at(request):
            return None
        hangs.append(request)
        return fault("hang")

    server.behaviour.fault = decide
    process = start(*words, cwd=None, **KEYS)
    try:
        until(lambda: hangs or process.poll() is not None, "the request")
        process.send_signal(how)
        ended = wait(process)
    finally:
        server.behaviour.fault = None
    assert hangs, ended.err
    return ended


def is_part(request: Any) -> bool:
    return "partNumber" in request.query


def is_sample(request: Any) -> bool:
    return bool(request.method == "GET" and request.key.endswith(".npz"))


def test_a_dataset_is_made_read_and_trained_on_beside_what_others_have(server: Any, tmp_path: Path) -> None:
    others = Others(server)
    others.put()
    words = settings_of(server, tmp_path / "run")
    assert run("datagen", *words, "dataset.format=nonsense").status == 2
    assert others.changed() == []
    for how in (signal.SIGINT, signal.SIGKILL):
        assert interrupted(server, is_part, how, "datagen", *words).status in (130, -signal.SIGKILL)
        assert others.changed() == []
        keys, uploads = others.ours
        assert keys == {"data/set/dlemu.json"}
        assert uploads  # a thread that waits for a server can't be interrupted
    run("datagen", *words).assert_ended(0)
    assert others.changed() == []
    keys, left = others.ours
    assert left <= keys, "a lifecycle rule ends what was killed"
    assert keys == {"data/set/dlemu.json", *(f"data/set/train/img_{n}_of_{FILES}.npz" for n in range(FILES))}
    others.put()
    assert run("datagen", *words).status == 0
    checked = run("datagen", "verify", *words)
    assert "every byte is as generated" in checked.out
    assert run("train", *words).ran
    assert interrupted(server, is_sample, signal.SIGINT, "datagen", "verify", *words).status == 130
    elsewhere = f"output.folder={tmp_path / 'another'}"
    assert interrupted(server, is_sample, signal.SIGINT, "train", *words, elsewhere).status == 130
    assert run("train", *words, elsewhere, "dataset.num_files_train=99").status == 2
    checked = run("datagen", "verify", *words, elsewhere, "dataset.num_files_train=99")
    assert f"{FILES} files in " in checked.out, "what was made is verified, not what is asked for"
    assert others.changed() == []
    assert others.ours == (keys, left)


def test_objects_of_others_where_the_dataset_is_to_be_are_refused_and_stay(server: Any, tmp_path: Path) -> None:
    server.objects["data/set/train/img_0_of_9.npz"] = b"of others"
    assert run("datagen", *settings_of(server, tmp_path / "run")).status == 2
    assert server.objects == {"data/set/train/img_0_of_9.npz": b"of others"}


def test_checkpoints_are_written_beside_what_others_have(server: Any, workload: Path, tmp_path: Path) -> None:
    words = [f"workload={workload}", "ranks=1", *S3(server.endpoint, tmp_path).settings, "output.report=false"]
    words += [f"model.transformer.{key}" for key in ("vocab_size=24000", "hidden_size=128", "ffn_hidden_size=128")]
    words += [f"checkpoint.{key}" for key in (f"checkpoint_folder={SAVED}", "num_checkpoints_write=2", "keep_last=1")]
    others = Others(server)
    others.put()
    for round_number in range(2):
        run("checkpoint", *words, f"output.folder={tmp_path / str(round_number)}").assert_ended(0)
        assert others.changed() == []
        assert others.ours[1] == set()
        assert {key.split("/")[2] for key in others.ours[0]} == {"global_epoch1_step2"}
        others.put()  # beside and below the checkpoint that is there, which the next run replaces
    assert any("partNumber" in request.query for request in server.requests), "files are uploaded in parts"
    for how in (signal.SIGINT, signal.SIGTERM):
        others.put(f"saved/{how.name}/")
        places = [f"output.folder={tmp_path / how.name}", f"checkpoint.checkpoint_folder=saved/{how.name}"]
        assert interrupted(server, is_part, how, "checkpoint", *words, *places).status in (130, 143)
        assert others.changed() == []
        assert others.ours[1] == set()
    assert run("checkpoint", *words, "checkpoint.keep_last=-3", f"output.folder={tmp_path / 'wrong'}").status == 2
    assert others.changed() == []


def test_studies_leave_what_others_have(server: Any, tmp_path: Path) -> None:
    words = settings_of(server, tmp_path / "none", "dataset.num_files_train=420", "dataset.record_length_bytes=1000")
    words = without(words, "output.folder", "ranks")
    others = Others(server)
    others.put()
    assert run("datagen", *words).status == 0
    others.put()
    few = ("ranks=1,2", "train.epochs=1", "train.computation_time=0.001")
    ended = run("sweep", *words, *few, f"output.folder={tmp_path / 'sweep'}")
    assert ended.status in COMPLETED, ended.err
    assert others.changed() == []
    for command, more in (("sweep", few), ("size", ("--trial-seconds", "2"))):
        assert run(command, *words, *more, "dataset.num_files_train=9999").status == 2
        assert interrupted(server, is_sample, signal.SIGINT, command, *words, *more).status == 130
        assert others.changed() == []
