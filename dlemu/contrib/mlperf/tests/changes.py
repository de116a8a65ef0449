"""Changes of trees: of values deep in the files of every run of training, of the first, of a call of checkpoints."""

from __future__ import annotations

import operator
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dlemu.contrib.mlperf.tests.golden import config_folder, edit, leaves

Change = Callable[[Path], object]
Edit = Callable[[Any], object]
META = "*_metadata.json"


class Inapplicable(Exception):
    """The tree has nothing of the kind."""


def found(root: Path, pattern: str) -> list[Path]:
    """The paths below that match, of which there is one at least."""
    paths = sorted(root.rglob(pattern))
    if not paths:
        raise Inapplicable(pattern)
    return paths


def runs(root: Path) -> list[Path]:
    ran = [path.parent for path in found(root, "summary.json")]
    trained = [run for run in ran if not {"checkpointing", "kv_cache", "vector_database"} & set(run.parts)]
    if not trained:
        raise Inapplicable(f"no run of training in {root}")
    return trained


def first(root: Path) -> Path:
    return runs(root)[0]


# Of what a file holds: `a/b/0` is a place in mappings and lists.


def _at(key: str, act: Callable[[Any, Any], object]) -> Edit:
    """Return what does something to the mapping or list that holds a value, by its key or index."""

    def change(content: Any) -> None:
        *above, last = key.split("/")
        for part in above:
            content = content[part if isinstance(content, dict) else int(part)]
        act(content, last if isinstance(content, dict) else int(last))

    return change


def put(key: str, value: Any) -> Edit:
    return _at(key, lambda held, name: operator.setitem(held, name, value))


def alter(key: str, value: Any) -> Edit:
    def act(held: Any, name: Any) -> None:
        if name not in held or held[name] == value:
            raise Inapplicable(key)
        held[name] = value

    return _at(key, act)


def scale(key: str, factor: float) -> Edit:
    return _at(key, lambda held, name: operator.setitem(held, name, factor * held[name]))


def gone(key: str) -> Edit:
    return _at(key, lambda held, name: held.pop(name))


# Of files.


def edits(paths: Iterable[Path], change: Edit) -> None:
    for path in paths:
        edit(path, change)


def each(pattern: str, change: Edit) -> Change:
    return lambda root: edits(found(root, pattern), change)


def in_first(pattern: str, change: Edit) -> Change:
    return lambda root: edit(found(root, pattern)[0], change)


def last(root: Path, pattern: str) -> Path:
    """The first path that matches in the last folder of a run, of any benchmark, that has one."""
    for summary in reversed(found(root, "summary.json")):
        for path in sorted(summary.parent.glob(pattern)):
            return path
    raise Inapplicable(pattern)


def in_last(pattern: str, change: Edit) -> Change:
    return lambda root: edit(last(root, pattern), change)


def in_run(pattern: str, change: Edit) -> Change:
    return lambda root: edit(next(iter(sorted(runs(root)[-1].glob(pattern)))), change)


def text(pattern: str, content: str) -> Change:
    """Write another content into the file of the last run that has one."""
    return lambda root: last(root, pattern).write_text(content)


def removed(pattern: str) -> Change:
    def change(root: Path) -> None:
        path = found(root, pattern)[0]
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def _of(run: Path, name: str) -> list[Path]:
    return [*run.glob(name), *config_folder(run).glob(name)]


def every(root: Path, name: str, change: Edit) -> None:
    """Change a file of every run of training; `*` stands for the time in its name."""
    for run in runs(root):
        edits(_of(run, name), change)


def of_the_first(name: str, key: str, value: Any) -> Change:
    return lambda root: edits(_of(first(root), name), put(key, value))


def config(key: str, value: Any) -> Change:
    return lambda root: every(root, "config.yaml", put(f"workload/{key}", value))


def summary(key: str, value: Any) -> Change:
    return lambda root: every(root, "summary.json", put(key, value))


def metadata(key: str, value: Any) -> Change:
    return lambda root: every(root, META, put(key, value))


def drop(pattern: str) -> Change:
    def change(root: Path) -> None:
        for path in first(root).glob(pattern):
            path.unlink()

    return change


def together(*changes: Change) -> Change:
    return lambda root: [change(root) for change in changes]


# Of a model's folder of checkpoints.


def edited(name: str, change: Edit, call: int = 0) -> Change:
    return lambda folder: edits(leaves(folder)[call].glob(name), change)


def in_both(name: str, change: Edit) -> Change:
    return together(edited(name, change, 0), edited(name, change, 1))


def setting(key: str, value: Any) -> Change:
    """Change a setting in both calls, wherever it was kept."""
    kept = {"dlio_config/config.yaml": f"workload/{key}", META: f"parameters/{key}"}
    return together(*(in_both(name, put(place, value)) for name, place in kept.items()))


def processes(count: int, hosts: int = 1) -> Change:
    return in_both("summary.json", lambda told: told.update(num_accelerators=count, num_hosts=hosts))


def end(moment: str) -> Change:
    return edited("summary.json", put("end", moment))


def ended_at(moment: str) -> Change:
    return edited(META, put("invocation_end_time", moment))
