"""A kind of job from another package has settings of its own beside the shared ones."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from datagen.errors import UserError
from datagen.registry import installed
from dlemu.config import load, load_received, to_yaml
from dlemu.config.schema import Workload, sections, settings_class
from dlemu.config.validate import check
from tests.test_extending import SETTINGS

Uninstall = Callable[[], None]


def forget() -> None:
    for found in (installed, sections, settings_class):
        found.cache_clear()
    for name in [name for name in sys.modules if name.startswith("dlemu_stat")]:
        del sys.modules[name]


@pytest.fixture
def stat(tmp_path: Path) -> Iterator[Uninstall]:
    """Have a package with a kind of job, as pip would have installed it, until what is returned is called."""
    package, info = tmp_path / "site" / "dlemu_stat", tmp_path / "site" / "dlemu_stat-1.0.dist-info"
    for folder in (package, info):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "settings.py").write_text(SETTINGS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlemu-stat\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dlemu.jobs]\nstat = dlemu_stat\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "site"))
        forget()

        def uninstall() -> None:
            patch.undo()
            forget()

        yield uninstall
    forget()


def test_a_section_is_set_saved_and_read_back_typed(stat: Uninstall, tmp_path: Path) -> None:
    kind = import_module("dlemu_stat.settings").StatSettings
    workload = load(["stat.files=7", "++workload.stat.folder=http://me:secret@host/x", "ranks=2"])
    assert workload.section(kind) == kind(files=7, folder="http://me:secret@host/x")
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(workload))
    assert "secret" not in saved.read_text()
    for read in (load_received(str(saved)), load([f"workload={saved}"])):
        assert (read.ranks, read.section(kind).files) == (2, 7)
    assert load(["stat.files=null"]).section(kind) == load([]).section(kind) == kind()
    stat()
    received = load_received(str(saved))
    assert (received.ranks, received.kinds["stat"]["files"]) == (2, 7), "where nobody has it"
    assert "\nstat:\n  files: 7\n" in to_yaml(received), "and is written down again"
    with pytest.raises(UserError, match="unknown key stat"):
        load([f"workload={saved}"])


@pytest.mark.usefixtures("stat")
def test_a_section_is_written_and_checked() -> None:
    assert "\nstat:\n  files: 100\n" in to_yaml(load(["stat.files=100"]))
    for words, problem in (
        (
            "stat.files=0 stat.stride_bytes=-1",
            r"stat\.files is 0: wanted int >= 1.*stat\.stride_bytes is -1: wanted int",
        ),
        ("stat.files=2000000 stat.stride_bytes=1", r"stat\.stride_bytes and stat\.files are both large"),
        ("stat.fil=1 fils=1", r"unknown key fils: did you mean stat\.files.*key stat\.fil: did you mean stat\.files"),
    ):
        with pytest.raises(UserError, match=f"(?s){problem}"):
            load(words.split())


@pytest.mark.usefixtures("stat")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("import there_is_no_such_thing", "dlemu_stat, an installed kind.*there_is_no_such_thing.*uninstall it"),
        (SETTINGS.replace('("stat"', '("train"'), "'train', which already exist"),
    ],
)
def test_a_kind_whose_settings_can_not_be_had_is_named(settings: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "site/dlemu_stat/settings.py").write_text(settings)
    with pytest.raises(UserError, match=f"(?s){said}"):
        load([])


def test_sections_of_unknown_kinds_cross_processes_and_facts() -> None:
    workload = replace(load([]), kinds={"stat": {"files": 7}})
    check(workload)
    assert pickle.loads(pickle.dumps(workload)) == workload
    assert msgspec.json.decode(msgspec.json.encode(workload), type=Workload) == workload


def test_the_field_that_holds_them_is_no_setting() -> None:
    assert "kinds" not in [part.name for part in fields(settings_class())]
    with pytest.raises(UserError, match="unknown key kinds"):
        load(["kinds={stat: {files: 1}}"])
