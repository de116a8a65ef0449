"""A kind of job from another package has settings of its own beside the shared ones."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from datagen.errors import UserError
from dlemu.config import load, to_yaml
from dlemu.config.loading import load_received
from dlemu.config.schema import Workload
from dlemu.config.sections import sections, tree
from dlemu.config.validate import check
from tests.test_extending import SETTINGS

USE = """
import sys
from dlemu.config import check_runnable, load, load_received, to_yaml
from dlemu.config.dump import withheld_words
from dlemu_stat.settings import StatSettings
saved, words = sys.argv[1], ["stat.files=7", "++workload.stat.folder=http://me:secret@host/x", "ranks=2"]
workload = load(words)
assert workload.section(StatSettings) == StatSettings(files=7, folder="http://me:secret@host/x")
assert withheld_words(workload) == ["stat.folder='http://me:secret@host/x'"], withheld_words(workload)
text = to_yaml(workload)
assert "secret" not in text
open(saved, "w").write(text)
for read in (load_received(saved), load([f"workload={saved}"])):
    assert (read.ranks, read.section(StatSettings).files) == (2, 7)
assert load(["stat.files=null"]).section(StatSettings) == load([]).section(StatSettings) == StatSettings()
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has a package with a kind of job, as pip would have installed it."""
    package, info = tmp_path / "site" / "dlemu_stat", tmp_path / "site" / "dlemu_stat-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "kind.py").write_text(
        'from dlemu.results.kinds import Kind\nKIND = Kind(name="stat", noun="a stat", load=dict)\n'
    )
    (package / "settings.py").write_text(SETTINGS)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlemu-stat\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dlemu.jobs]\nstat = dlemu_stat\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


def test_a_section_is_set_saved_and_read_back_typed(elsewhere: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    done = run(elsewhere, "-c", USE, str(saved))
    assert done.returncode == 0, done.stderr
    assert "stat" not in sections(), "this process does not have it"
    received = load_received(str(saved))
    assert (received.ranks, received.kinds["stat"]["files"]) == (2, 7)
    assert "\nstat:\n  files: 7\n" in to_yaml(received), "and is written down again"
    with pytest.raises(UserError, match="unknown key stat"):
        load([f"workload={saved}"])


def test_a_section_is_printed_with_its_meaning_and_checked(elsewhere: dict[str, str]) -> None:
    printed = run(elsewhere, "-m", "dlemu", "train", "--cfg", "stat.files=100").stdout
    assert "\n# How metadata is read.\nstat:\n  # Files whose metadata is read.\n  files: 100\n" in printed
    wrong = ["stat.files=0", "stat.stride_bytes=-1", "stat.fil=1", "fils=1"]
    for words, problem in (
        (wrong[:2], r"stat\.files is 0: wanted int >= 1.*stat\.stride_bytes is -1: wanted int >= 0"),
        (["stat.files=2000000", "stat.stride_bytes=1"], r"stat\.stride_bytes and stat\.files are both large"),
        (wrong[2:], r"unknown key fils: did you mean stat\.files.*unknown key stat\.fil: did you mean stat\.files"),
    ):
        refused = run(elsewhere, "-m", "dlemu", "train", "--cfg", *words)
        assert refused.returncode == 2
        assert re.search(problem, refused.stderr, re.DOTALL), refused.stderr


def test_sections_of_unknown_kinds_cross_processes_and_facts() -> None:
    workload = replace(load([]), kinds={"stat": {"files": 7}})
    check(workload)
    assert pickle.loads(pickle.dumps(workload)) == workload
    assert msgspec.json.decode(msgspec.json.encode(workload), type=Workload) == workload


def test_the_field_that_holds_them_is_no_setting() -> None:
    assert "kinds" not in tree().__dataclass_fields__
    with pytest.raises(UserError, match="unknown key kinds"):
        load(["kinds={stat: {files: 1}}"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("import there_is_no_such_thing", "dlemu_stat, an installed kind.*there_is_no_such_thing.*uninstall it"),
        (SETTINGS.replace('("stat"', '("train"'), "'train', which already exist"),
    ],
)
def test_a_kind_whose_settings_can_not_be_had_is_named(
    settings: str, said: str, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "site/dlemu_stat/settings.py").write_text(settings)
    done = run(elsewhere, "-m", "dlemu", "train", "--cfg")
    assert done.returncode == 2
    assert re.search(said, done.stderr, re.DOTALL)
