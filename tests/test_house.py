"""Rules of the architecture that a machine can check: no import circle, one interface to each foreign library.

And few places that start processes: each would need its own way to end them and to say how they ended.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.budget import product
from tests.parts import needs_all_parts

ROOT = Path(__file__).parent.parent
INTERFACES = {
    "altair": ["dlemu/report/*", "dlemu/*/figures*"],
    "click": ["dlemu/cli/*", "dlemu/contrib/*command.py"],
    "h5py": ["datagen/formats/*hdf5*.py"],
    "hydra": ["dlemu/config/*"],
    "jinja2": ["dlemu/report/*"],
    "mpi4py": ["dlemu/ranks/*"],
    "omegaconf": ["dlemu/config/*"],
    "rich": [
        "dlemu/cli/*",
        "dlemu/contrib/*command.py",
        "dlemu/contrib/mlperf/*lines.py",
        "dlemu/report/*",
        "dlemu/*/page.py",
    ],
    "tensorflow": ["dlemu/loaders/tensorflow.py", "dlemu/loaders/_tf_*.py"],
    "torch": [
        "dlemu/contrib/record/recorder.py",
        "dlemu/loaders/pytorch.py",
        "dlemu/loaders/_torch_*.py",
        "dlemu/ranks/torchrun.py",
    ],
    "vl_convert": ["dlemu/report/*"],
}
"""Foreign library -> the only files that import it."""
STARTS = {
    "multiprocessing": {"Pool", "Process", "get_context", "Manager"},
    "concurrent.futures": {"ProcessPoolExecutor"},
    "subprocess": {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"},
    "pty": {"fork", "spawn"},
    "os": {"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "system"}
    | {f"spawn{letters}" for letters in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
}
"""Module -> its functions and classes that start processes."""
STARTERS = {
    "dlemu/ranks/process_control.py": (1, "forks: ranks and workers, the recorder, what keeps the time of MPI's start"),
    "dlemu/runner/child_run.py": (1, "commands: that leave a result, print, are on a terminal"),
    "dlemu/loaders/_direct_queue.py": (1, "no process: the context by which PyTorch starts its own workers"),
}
"""The only files that start processes, in how many places, and what for."""


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules by dotted name; a package has the name of its folder."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in product()
    }


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Return what a file imports, in functions and for type checkers too, as (module, name in it or '')."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                yield from ((alias.name, "") for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((module, alias.name) for alias in node.names)
            case ast.ImportFrom():
                raise AssertionError(f"{path}: {ast.unparse(node)} is relative: write the whole name")
            case ast.Call(func=ast.Name(id="library"), args=[ast.Constant(value=str(module)), *_]):  # of registry.py
                yield module, ""
        waiting += ast.iter_child_nodes(node)


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


@pytest.mark.parametrize("library", INTERFACES)
def test_a_foreign_library_is_imported_through_its_interface(library: str) -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for path in modules().values()
        if any(module.split(".")[0] == library for module, _ in imports(path))
    ]
    assert users, f"nothing imports {library}: take it out of the table"
    assert not [user for user in users if not any(fnmatch(user, interface) for interface in INTERFACES[library])]


def starts_in(source: str) -> list[str]:
    """Return the calls in a file, and names passed on, that start processes."""
    tree, named, called = ast.parse(source), set[str](), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in STARTS:
            named |= {alias.asname or alias.name for alias in node.names if alias.name in STARTS[node.module]}
        if isinstance(node, ast.Import):
            called |= {alias.asname or alias.name: alias.name for alias in node.names}
    annotations = {id(part) for node in ast.walk(tree) for part in _annotation(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in annotations:
            continue
        match node:
            case ast.Name(id=name) if name in named:
                found.append(name)
            case ast.Attribute(value=value, attr=name) if name in STARTS.get(called.get(ast.unparse(value), ""), ()):
                found.append(ast.unparse(node))
    return found


def _annotation(node: ast.AST) -> Iterator[ast.AST]:
    for field in ("annotation", "returns"):
        annotated = getattr(node, field, None)
        if annotated is not None:
            yield from ast.walk(annotated)


@pytest.mark.parametrize(
    ("source", "starts"),
    [
        ("import os\nos.fork()", 1),
        ("import subprocess as s\ndef f(p: s.Popen[str]): s.run(['x'])", 1),
        ("from multiprocessing import get_context as g\ng('fork').Process()", 1),
        ("from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\nThreadPoolExecutor()", 0),
        ("import multiprocessing\nmap(multiprocessing.Process, x)", 1),
        ("run()", 0),
    ],
)
def test_what_starts_a_process_is_seen(source: str, starts: int) -> None:
    assert len(starts_in(source)) == starts


@needs_all_parts
def test_processes_are_started_in_these_places_alone() -> None:
    found = {path.relative_to(ROOT).as_posix(): len(starts_in(path.read_text())) for path in modules().values()}
    assert {name: count for name, count in found.items() if count} == {name: n for name, (n, _) in STARTERS.items()}


SENTENCES = {"advice", "evidence", "issue", "issues", "sentence", "verdict", "warning"}
"""Names of what is said to people: what is decided is decided by a code, a severity or a number."""
LONG_TEXTS_OF_METRICS = 2
"""Texts of 40 characters or more with a space in dlemu/metrics: a type's error, and a note on uncertainty."""


def is_sentence(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SENTENCES or name.endswith(("_verdict", "_issue", "_warning"))
        case ast.Call(func=ast.Name(id="str"), args=[text]) | ast.Subscript(value=text):
            return is_sentence(text)
        case ast.Attribute(attr="text", value=whole):
            return is_sentence(whole)
    return False


def reads_sentence(node: ast.AST) -> bool:
    """Say whether an expression looks into a sentence for words."""
    match node:
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "partition" | "rpartition", value=text)):
            return is_sentence(text)
        case ast.Compare(ops=[ast.In() | ast.NotIn()], left=ast.Constant(value=str()), comparators=[text]):
            return is_sentence(text)
    return False


@needs_all_parts
def test_nothing_is_decided_by_what_a_sentence_says() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {ast.unparse(node)}"
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if reads_sentence(node)
    }
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "issue.startswith(_LOUD)",
        "summary.verdict.partition(':')",
        "'STORAGE' in trial.page_cache_warning",
        "'PASS' not in verdict",
        "answer.issues[0].endswith('read')",
    ],
)
def test_a_look_into_a_sentence_is_found(code: str) -> None:
    assert reads_sentence(ast.parse(code, mode="eval").body)


def long_texts(tree: ast.AST) -> Iterator[str]:
    """Yield the longer texts with spaces that are no docstrings; of an f-string what is fixed in it."""
    known: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                known.add(docstring)
                continue
            case ast.JoinedStr(values=parts):
                known.update(parts)
                text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
            case ast.Constant(value=str(text)) if node not in known:
                pass
            case _:
                continue
        if len(text) >= 40 and " " in text:
            yield text


def test_metrics_make_no_sentences() -> None:
    paths = sorted((ROOT / "dlemu" / "metrics").glob("*.py"))
    texts = [text for path in paths for text in long_texts(ast.parse(path.read_text()))]
    assert len(texts) <= LONG_TEXTS_OF_METRICS, texts


def test_code_is_named_by_strings_in_one_place() -> None:
    """Elsewhere an import says which module, in a function where it is heavy: mypy and go-to-definition follow it."""
    places = {
        path.relative_to(ROOT).as_posix()
        for path in product()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and {"import_module", "__import__"} & {getattr(node, part, "") for part in ("attr", "id", "name")}
    }
    assert places == {"datagen/registry.py"}


def test_each_package_says_what_it_is_for() -> None:
    for path in sorted((ROOT / "dlemu").rglob("__init__.py")):
        assert "tests" in path.parts or ast.get_docstring(ast.parse(path.read_text())), path


def test_extensions_are_written_with_few_names_that_are_all_explained() -> None:
    text = (ROOT / "dlemu" / "extend.py").read_text()
    names = set(re.findall(r"import \w+ as (\w+)", text))
    assert 30 < len(names) <= 40
    assert names <= set(re.findall(r"`(\w+)`", ast.get_docstring(ast.parse(text)) or ""))
