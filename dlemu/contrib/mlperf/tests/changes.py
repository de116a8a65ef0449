"""Changes of trees: of every run of training, of the first, and of the calls of a checkpointing result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlemu.contrib.mlperf.tests.checkpoint_leaves import leaves
from dlemu.contrib.mlperf.tests.golden import config_folder, edit

Change = Callable[[Path], object]


def runs(root: Path) -> list[Path]:
    """The folders of the runs of training, in order."""
    found = sorted(path.parent for path in root.rglob("summary.json"))
    trained = [run for run in found if not {"checkpointing", "kv_cache", "vector_database"} & set(run.parts)]
    if not trained:
        raise FileNotFoundError(f"no run of training in {root}")
    return trained


def first(root: Path) -> Path:
    return runs(root)[0]


def every(root: Path, name: str, change: Callable[[Any], None]) -> None:
    """Change a file of every run; `*` stands for the time in its name."""
    for run in runs(root):
        for path in [*run.glob(name), *config_folder(run).glob(name)]:
            edit(path, change)


def put(*keys: str, value: Any) -> Callable[[Any], None]:
    """Set a value deep in a file."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def config(*keys: str, value: Any) -> Change:
    return lambda root: every(root, "config.yaml", put("workload", *keys, value=value))


def summary(*keys: str, value: Any) -> Change:
    return lambda root: every(root, "summary.json", put(*keys, value=value))


def metadata(*keys: str, value: Any) -> Change:
    return lambda root: every(root, "*_metadata.json", put(*keys, value=value))


def override(*words: str) -> Change:
    return lambda root: every(root, "overrides.yaml", lambda content: content.extend(words))


def drop(pattern: str) -> Change:
    """Remove a file of the first run."""

    def change(root: Path) -> None:
        for path in first(root).glob(pattern):
            path.unlink()

    return change


def of_the_first(name: str, *keys: str, value: Any) -> Change:
    """Change a file of the first run alone."""

    def change(root: Path) -> None:
        for path in [*first(root).glob(name), *config_folder(first(root)).glob(name)]:
            edit(path, put(*keys, value=value))

    return change


def files_of(phase: str, files: int) -> Change:
    """Let a phase tell another number of files."""

    def change(root: Path) -> None:
        first(root)  # of training alone
        for path in root.rglob(f"{phase}/*/dlio_config/config.yaml"):
            edit(path, put("workload", "dataset", "num_files_train", value=files))
        for path in root.rglob(f"{phase}/*/*_metadata.json"):
            edit(path, put("parameters", "dataset", "num_files_train", value=files))

    return change


def logged_by_dlemu(root: Path) -> None:
    (first(root) / "dlio.log").write_text(
        "[OUTPUT] 2026-11-21T14:56:14 dlemu 1 as a drop-in replacement for DLIO: train on 1 rank\n"
    )


# Of a model's folder of checkpoints.


def edited(name: str, change: Callable[[Any], None], call: int = 0) -> Change:
    """Return what changes a file of one call."""

    def apply(folder: Path) -> None:
        for path in leaves(folder)[call].glob(name):
            edit(path, change)

    return apply


def setting(section: str, key: str, value: Any) -> Change:
    """Return what changes a setting in both calls, wherever it was kept."""

    def apply(folder: Path) -> None:
        for call in (0, 1):
            edited("dlio_config/config.yaml", lambda tree: tree["workload"][section].update({key: value}), call)(folder)
            edited("*_metadata.json", lambda tree: tree["parameters"][section].update({key: value}), call)(folder)

    return apply


def processes(count: int, hosts: int = 1) -> Change:
    """Return what changes the number of processes in both calls."""

    def apply(folder: Path) -> None:
        for call in (0, 1):
            edited("summary.json", lambda tree: tree.update(num_accelerators=count, num_hosts=hosts), call)(folder)

    return apply


def end(moment: str) -> Change:
    return edited("summary.json", lambda tree: tree.update(end=moment))


def ended_at(moment: str) -> Callable[[Any], None]:
    """Return what tells in a call's metadata when it ended."""
    return lambda tree: tree.update(invocation_end_time=moment)
