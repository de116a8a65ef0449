"""Several rehearsals by one command: what runs, what goes on, and that their one tree breaks no rule."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import DlemuError, UserError
from dlemu.contrib.mlperf.rehearsal.submission import Submission, split
from dlemu.contrib.mlperf.tests import test_rehearsal_checkpoints as checkpoints
from dlemu.contrib.mlperf.tests import test_rehearsal_kv as kv
from dlemu.contrib.mlperf.tests.golden import make_tree
from dlemu.contrib.mlperf.tests.test_rehearsal_checkpoints import calls
from dlemu.contrib.mlperf.tests.test_rehearsal_kv import runs
from tests.dlio import published_checkpoints as published

__all__ = ["calls", "runs"]  # fixtures

WORDS = (["workload=unet3d"], ["workload=llama3_8b"], ["workload=mlperf_kv"])


@dataclass(frozen=True)
class Made:
    """A part whose runs take no time: the tree of a valid result of training."""

    folder: Path
    workload_name: str = "unet3d"
    edition_name: str = "3.0"
    resumes: bool = True

    def run(self) -> None:
        tree = make_tree(self.folder / "tree", "3.0")
        shutil.rmtree(tree / "acme")  # a rehearsal has no copy of the tool's code
        for pointer in tree.rglob(".mlps-code-image"):
            pointer.unlink()
        (self.folder / "rehearsal.json").write_text(json.dumps({"complete": True, "edition": "3.0"}))


def make(words: Sequence[str], folder: str) -> Any:
    """The rehearsal of a workload, each on a system of its own: what is made up of their hosts differs."""
    if words == ["workload=unet3d"]:
        return Made(Path(folder))
    if words == ["workload=llama3_8b"]:
        return checkpoints.rehearsal(Path(folder), published.MEMORY_GIB, system="drive")
    return replace(kv.rehearsal(Path(folder)), organisation="acme", system="shelf")


def submission(folder: Path, parts: Sequence[Sequence[str]] = WORDS, **changes: Any) -> Submission:
    settings: dict[str, Any] = {"make": make, "run_part": lambda part: part.run(), "report": lambda line: None}
    return Submission(folder=str(folder), parts=parts, **settings | changes)


def test_training_checkpoints_and_caches_end_in_one_valid_tree(
    calls: checkpoints.Words, runs: kv.Runs, tmp_path: Path
) -> None:
    checked = submission(tmp_path).run()
    assert (len(checked.results), len(checked.checkpoints), len(checked.others)) == (1, 1, 1)
    assert len(checked.submissions) == 1
    assert checkpoints.errors(checked) == set()
    described = {path.name for path in (tmp_path / "tree/closed/acme/systems").iterdir()}
    assert {"box.yaml", "drive.yaml", "shelf.yaml"} <= described
    with pytest.raises(UserError, match="finished rehearsal"):
        submission(tmp_path).run()


def test_an_interrupted_one_goes_on_with_what_is_missing(
    calls: checkpoints.Words, runs: kv.Runs, tmp_path: Path
) -> None:
    runs.fails_at = 5
    with pytest.raises(DlemuError, match="gone"):
        submission(tmp_path).run()
    assert not (tmp_path / "tree").exists()
    with pytest.raises(UserError, match=r"with other settings: set output\.folder"):
        submission(tmp_path, WORDS[:2]).run()
    said: list[str] = []
    submission(tmp_path, report=said.append).run()
    assert [line for line in said if "done already" in line] == [
        "part 1 of 3, unet3d: done already",
        "part 2 of 3, llama3-8b: done already",
    ]
    assert len(runs.asked) == 10
    assert {path.name for path in (tmp_path / "parts").iterdir() if path.is_dir()} == {
        "unet3d",
        "llama3-8b",
        "kv_cache",
    }


def test_checkpoints_that_were_cut_short_begin_anew_beside_what_is_there(
    calls: checkpoints.Words, tmp_path: Path
) -> None:
    def stop(part: Any) -> None:
        (Path(part.folder) / "rehearsal.json").write_text('{"complete": false}')
        raise DlemuError("the storage is gone")

    with pytest.raises(DlemuError, match="gone"):
        submission(tmp_path, [["workload=llama3_8b"]], run_part=stop).run()
    submission(tmp_path, [["workload=llama3_8b"]]).run()
    assert json.loads((tmp_path / "parts/llama3-8b-2/rehearsal.json").read_text())["complete"]


def test_nothing_runs_where_the_parts_can_not_be_one_tree(tmp_path: Path) -> None:
    def never(part: Any) -> None:
        raise AssertionError

    with pytest.raises(UserError, match="two parts"):
        submission(tmp_path, [WORDS[0], WORDS[0]], run_part=never).run()
    older = Made(tmp_path, workload_name="resnet50", edition_name="2.0")

    def mixed(words: Sequence[str], folder: str) -> Any:
        return older if words == ["workload=resnet50"] else make(words, folder)

    with pytest.raises(UserError, match="one edition"):
        submission(tmp_path, [WORDS[0], ["workload=resnet50"]], make=mixed, run_part=never).run()
    assert not list(tmp_path.iterdir())


def test_a_plus_alone_separates_the_parts() -> None:
    assert split(["a=1", "+b=2", "+", "c=3"]) == [["a=1", "+b=2"], ["c=3"]]
    with pytest.raises(UserError, match="before or after"):
        split(["a=1", "+"])
