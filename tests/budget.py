"""How large this repository is; `python -m tests.budget` lowers budget.toml to that, and raises nothing."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parent.parent
BUDGET = Path(__file__).with_name("budget.toml")
INNER = re.compile(r"(?:datagen|dlemu\.(?!contrib\b|api\b|results\b|report\b|config\b|extend\b)\w+)(?:\.|$)")
"""Modules that the optional parts are to use through `dlemu.extend` alone."""


def product() -> Iterator[Path]:
    """Yield the modules of dlemu and datagen, without the tests of optional parts."""
    for package in ("datagen", "dlemu"):
        paths = sorted((ROOT / package).rglob("*.py"))
        yield from (path for path in paths if "tests" not in path.relative_to(ROOT).parts)


def packages() -> dict[str, dict[str, int]]:
    """Return package -> its lines, files, functions and syntax nodes."""
    found: dict[str, dict[str, int]] = {}
    for path in product():
        parts = path.relative_to(ROOT).parts[:-1]
        deep = 3 if parts[1:2] in (("contrib",), ("jobs",)) else 2 if parts[0] == "dlemu" else 1
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        sizes = found.setdefault("/".join(parts[:deep]), dict.fromkeys(("lines", "files", "functions", "nodes"), 0))
        sizes["lines"] += text.count("\n")
        sizes["files"] += 1
        sizes["functions"] += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
        sizes["nodes"] += len(nodes)
    return found


def whole() -> dict[str, int]:
    """Return what is counted of the whole repository; what a run imports is in tests/run/test_minimal_run.py."""
    from dlemu.cli import commands

    pages = {path: path.read_text() for top in ("docs", "dlemu/contrib") for path in (ROOT / top).rglob("*.md")}
    generated = {path for path, text in pages.items() if _is_generated(path, text)}
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "dlemu/contrib").glob("*/tests/**/*.py"), ROOT / "conftest.py"]
    scripts = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".py")]
    sizes = packages().values()
    return {
        "product_lines": sum(size["lines"] for size in sizes),
        "product_files": sum(size["files"] for size in sizes),
        "product_functions": sum(size["functions"] for size in sizes),
        "settings": sum(_keys(text) for path, text in pages.items() if path.name == "settings.md"),
        "documented_keys": documented_keys(),
        "commands": len(commands()),
        "words_by_hand": sum(len(text.split()) for path, text in pages.items() if path not in generated),
        "words_generated": sum(len(pages[path].split()) for path in generated),
        "words_of_changelog": len((ROOT / "CHANGELOG.md").read_text().split()),
        "test_lines": sum(path.read_text().count("\n") for path in tests),
        "script_lines": sum(path.read_text().count("\n") for path in scripts),
        "inner_names_in_contrib": len(inner_names()),
    }


def documented_keys() -> int:
    """Return how many keys the results of all commands have, and how many columns the tables of rows.

    A type counts once, wherever it stands, also as the base of others: they add the keys that they declare themselves.
    """
    from dlemu.checkpoints.io_rows import IO_COLUMNS
    from dlemu.jobs.training.steplog import STEP_COLUMNS
    from dlemu.results.schemas import kinds_by_command, types_in

    roots = [kind.load().answer_type for kind in kinds_by_command().values()]
    tables = {base for root in roots for table in types_in(root) for base in table.__mro__ if _names(base)}
    own = [_names(table).difference(*map(_names, table.__mro__[1:])) for table in tables]
    return len(IO_COLUMNS) + len(STEP_COLUMNS) + sum(map(len, own))


def _names(table: type[Any]) -> set[str]:
    """Return the keys of a type; a class that is no table has none."""
    if issubclass(table, msgspec.Struct):
        return {field.name for field in msgspec.structs.fields(table)} if table is not msgspec.Struct else set()
    return {field.name for field in dataclasses.fields(table)} if dataclasses.is_dataclass(table) else set()


def inner_names() -> set[tuple[str, str]]:
    """Return the names of the core's inside that optional parts import, as (module, name)."""
    found = set()
    for path in product():
        if "contrib" in path.parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and INNER.match(node.module or ""):
                    found |= {(node.module or "", alias.name) for alias in node.names}
    return found


def _is_generated(path: Path, text: str) -> bool:
    return path.parent.name == "evidence" or "by `scripts/docs`" in text.replace("\n", " ")[:600]


def _keys(text: str) -> int:
    """Return the number of keys in the lists of a page: `- `KEY`, `KEY` (TYPE): MEANING`."""
    heads = (re.sub(r" \(.*?\)", "", line) for line in text.splitlines())
    lists = (re.match(r"- `[^`]+`(?:, `[^`]+`)*", head) for head in heads)
    return sum(found[0].count("`") // 2 for found in lists if found)


def read_budget() -> dict[str, dict[str, Any]]:
    """Return the budget: `packages` (a table of sizes each), `whole`, and `goals`, which are only there to be seen."""
    return tomllib.loads(BUDGET.read_text())


def main() -> None:
    """Lower the budget to what is measured. Packages that are gone go; a new one is written into the file by hand."""
    budget, sizes, counts = read_budget(), packages(), whole()
    lowered: dict[str, dict[str, Any]] = {
        "packages": {name: _least(most, sizes[name]) for name, most in budget["packages"].items() if name in sizes},
        "whole": _least(budget["whole"], counts),
        "goals": budget["goals"],
    }
    head = [line for line in BUDGET.read_text().splitlines() if line.startswith("#")]
    for table, rows in lowered.items():
        head += ["", f"[{table}]", *(f"{_key(name)} = {_value(value)}" for name, value in rows.items())]
    BUDGET.write_text("\n".join(head) + "\n")


def _least(most: dict[str, int], measured: dict[str, int]) -> dict[str, int]:
    return {name: min(limit, measured.get(name, limit)) for name, limit in most.items()}


def _key(name: str) -> str:
    return f'"{name}"' if "/" in name else name


def _value(value: int | dict[str, int]) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{{ {', '.join(f'{name} = {number}' for name, number in value.items())} }}"


if __name__ == "__main__":
    main()
