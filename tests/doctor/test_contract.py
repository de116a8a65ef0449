"""What holds for each check of the folder, and for one that a file adds."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from datagen.registry import names
from dlemu.doctor import examine
from dlemu.doctor.check_base import Facts
from tests.datasets import make_dataset
from tests.doctor.workloads import small

CHECKS = [
    f"{package}.{name}" for package in ("dlemu.doctor", "dlemu.jobs.training.host_checks") for name in names(package)
]
QUICK = ("train.computation_time=0.01", "reader.data_loader=threads", "metric.ceiling_seconds=0.1")
ADDED = """
from datagen.errors import UserError
from dlemu.doctor.check_base import Check
NAME, ORDER = {name!r}, {order}
def check(facts):
    {body}
"""


@pytest.fixture(scope="module", params=["there", "absent"])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A host with the dataset and one without it."""
    folder = tmp_path_factory.mktemp("dataset")
    if request.param == "there":
        make_dataset(folder)
    return Facts(small(folder if request.param == "there" else folder / "absent", *QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_well_formed(name: str, facts: Facts) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert isinstance(module.ORDER, int)
    check = module.check(facts)
    if check is None:
        return
    assert check.name == module.NAME
    assert 0 < len(check.name) <= 13, "the width of its column"
    assert check.level in ("ok", "skip", "warn", "fail")
    assert check.observed
    assert check.level == "ok" or check.wanted or check.advice or check.observed.count(" ") > 3


def test_no_two_checks_have_one_name_or_one_place() -> None:
    modules = [importlib.import_module(name) for name in CHECKS]
    for attribute in ("NAME", "ORDER"):
        values = [getattr(module, attribute) for module in modules]
        assert len(set(values)) == len(values), attribute


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of checks: two that say something, and some that fail in each way that there is."""
    folder = tmp_path / "own_checks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    ok = 'return Check(name=NAME, level="ok", observed=str(facts.workload.ranks))'
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
