"""Rules of the house that a machine can hold: one basename once, no import cycle, one door for each foreign library."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOORS = {
    "altair": ["dlemu/report/*"],
    "click": ["dlemu/cli/*"],
    "h5py": ["datagen/formats/*hdf5*.py"],
    "hydra": ["dlemu/config/*"],
    "jinja2": ["dlemu/report/*"],
    "mpi4py": ["dlemu/comm/*"],
    "omegaconf": ["dlemu/config/*"],
    "pynvml": ["dlemu/telemetry/*"],
    "rich": ["dlemu/cli/*", "dlemu/report/*"],
    "tensorflow": ["dlemu/loaders/tensorflow.py", "dlemu/loaders/_tf_*.py"],
    "torch": ["dlemu/loaders/pytorch.py", "dlemu/loaders/_torch_*.py"],
    "vl_convert": ["dlemu/report/*"],
}
"""Foreign library -> the only files that import it."""
PLUG_INS_OF_ONE_NAME = {"memory"}
"""A probe and a storage: what both are called in settings and results."""


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules by dotted name; a package has the name of its folder."""
    paths = [path for package in ("dlemu", "datagen") for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Return what a file imports when it runs, in functions too, as (module, name in it or '')."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                waiting += node.orelse
                continue
            case ast.Import():
                yield from ((alias.name, "") for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((module, alias.name) for alias in node.names)
            case ast.ImportFrom():
                raise AssertionError(f"{path}: {ast.unparse(node)} is relative: write the whole name")
            case ast.Call(func=ast.Name(id="library"), args=[ast.Constant(value=str(module)), *_]):  # datagen/extras.py
                yield module, ""
        waiting += ast.iter_child_nodes(node)


def test_no_two_modules_have_one_basename() -> None:
    times = Counter(path.stem for path in modules().values() if path.name != "__init__.py")
    assert {stem for stem, count in times.items() if count > 1} <= PLUG_INS_OF_ONE_NAME


def test_no_modules_import_each_other_in_a_circle() -> None:
    """What is looked up by a name that a user writes (commands, plug-ins) is no import here."""
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        wanted = {f"{module}.{part}" if f"{module}.{part}" in modules() else module for module, part in imports(path)}
        graph[name] = (wanted & modules().keys()) - {name}
    graph["dlemu"] = set()  # the Python face, which imports anything when it is called
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("library", DOORS)
def test_a_foreign_library_is_imported_through_its_door(library: str) -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for path in modules().values()
        if any(module.split(".")[0] == library for module, _ in imports(path))
    ]
    assert users, f"nothing imports {library}: take it out of the table"
    assert not [user for user in users if not any(fnmatch(user, door) for door in DOORS[library])]
