"""The search as a user runs it: real trials, an interruption, and the answer."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.harness import CEILING, assert_gone, dlemu, family, small_run, start, until, wait, without

pytestmark = pytest.mark.slow


def words(folder: Path, dataset: Path) -> list[str]:
    """One accelerator on 48 files, whose trial takes 8 stretches of a second: 16 steps of 0.5 s."""
    quick = (CEILING, "reader.batch_size=1", "train.computation_time=0.5")
    return [*without(small_run(folder, dataset, *quick), "ranks"), "--most", "1"]


def test_a_search_is_interrupted_and_goes_on(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "size"
    search = start("size", *words(folder, dataset))
    until((folder / "size.json").exists, "the first trial")
    trial = until(lambda: family(search), "the second trial")
    search.send_signal(signal.SIGINT)
    wait(search).assert_ended(128 + signal.SIGINT, f"output.folder={folder}")
    assert_gone(trial)
    saved = json.loads((folder / "size.json").read_text())
    assert (saved["complete"], len(saved["trials"])) == (False, 1)

    ended = dlemu("size", *words(folder, dataset), "--at-least", "2", "--json")
    assert ended.status == 4, ended.err  # one passes, two were wanted, and none but one may be tried
    assert "continuing after 1 finished run\n" in ended.err
    answer = json.loads((folder / "size.json").read_text())
    assert answer["trials"][0] == saved["trials"][0]
    assert len(answer["trials"]) == 2
    assert (answer["complete"], answer["max_accelerators"], answer["outcome"]) == (True, 1, "no verdict")
    assert json.loads(ended.out) == answer
    run = json.loads((folder / answer["trials"][1]["folder"] / "summary.json").read_text())
    assert run["complete"]
    journal = json.loads((folder / answer["trials"][1]["folder"] / "facts.json").read_text())["journal"]
    assert journal["stopped_after_steps"] == sum(run["metrics"]["steps_per_epoch"])

    dlemu("size", *words(folder, dataset)).assert_ended(2, "finished search")


def test_what_it_finds_may_not_be_given(dataset: Path, tmp_path: Path) -> None:
    dlemu("size", *small_run(tmp_path, dataset)).assert_ended(2, "ranks is what `dlemu size` finds")
