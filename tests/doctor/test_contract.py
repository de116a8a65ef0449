"""What holds for each check of the folder, and for one that a file adds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from datagen.registry import names
from dlemu.doctor import examine
from dlemu.doctor.check_base import Check, Facts
from tests.datasets import make_dataset
from tests.doctor.workloads import small

MODULES = [*(f"dlemu.doctor.{name}" for name in names("dlemu.doctor")), "dlemu.jobs.training.host_checks"]
CHECKS = [each for module in MODULES for each in importlib.import_module(module).CHECKS.items()]
QUICK = ("train.computation_time=0.01", "reader.data_loader=threads", "metric.ceiling_seconds=0.1")
ADDED = """
from datagen.errors import UserError
from dlemu.doctor.check_base import Check
ORDER = {order}
def check(facts):
    {body}
CHECKS = {{{name!r}: check}}
"""


@pytest.fixture(scope="module", params=["there", "absent"])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A host with the dataset and one without it."""
    folder = tmp_path_factory.mktemp("dataset")
    if request.param == "there":
        make_dataset(folder)
    return Facts(small(folder if request.param == "there" else folder / "absent", *QUICK))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "look"), CHECKS, ids=[name for name, _ in CHECKS])
def test_a_check_is_well_formed(name: str, look: Callable[[Facts], Check | None], facts: Facts) -> None:
    assert 0 < len(name) <= 13, "the width of its column"
    check = look(facts)
    if check is None:
        return
    assert check.level in ("ok", "skip", "warn", "fail")
    assert check.observed
    assert check.level == "ok" or check.wanted or check.advice or check.observed.count(" ") > 3


def test_no_two_checks_have_one_name() -> None:
    assert len({name for name, _ in CHECKS}) == len(CHECKS)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of checks: two that say something, and some that fail in each way that there is."""
    folder = tmp_path / "own_checks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    ok = 'return Check(level="ok", observed=str(facts.workload.ranks))'
    bodies = {
        "second": ("second", 20, ok),
        "first": ("first", 10, ok),
        "silent": ("silent", 15, "return None"),
        "refuses": ("refuses", 30, 'raise UserError("no room: make some")'),
        "broken": ("broken", 40, "return {}['key']"),
    }
    for file, (name, order, body) in bodies.items():
        (folder / f"{file}.py").write_text(ADDED.format(name=name, order=order, body=body))
    (folder / "not_importable.py").write_text("import no_such_library")
    (folder / "_private.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_checks"


def test_to_add_a_check_is_to_add_a_file_and_none_that_raises_ends_the_others(package: str, tmp_path: Path) -> None:
    checks = [(check.name, check.level, check.observed) for check in examine(small(tmp_path, "ranks=3"), package)]
    assert checks == [
        ("not importable", "fail", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("first", "ok", "3"),
        ("second", "ok", "3"),
        ("refuses", "fail", "no room: make some"),
        ("broken", "fail", "KeyError: 'key'"),
    ]
