"""Without the folder of one kind of job the others are whole: what is named here speaks of it, all else does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens" / "results"
SPEAK_OF_IT = {
    "training": (
        *("dlemu.contrib.mlperf.audit.foreign_side", "dlemu.contrib.mlperf.audit.foreign_times"),
        *("dlemu.studies.size.find_size", "dlemu.studies.size.predictor", "dlemu.studies.size.trials"),
        "dlemu.contrib.reproduce.figures._device_rate",
    ),
    "checkpoint": (),
    "probe": (),
    "pack": (),
    "kvcache": (),
}
"""Kind -> modules, or packages, that can't be imported without it: what is asked of that kind alone."""
COMMANDS = {kind: {"training": "train"}.get(kind, kind) for kind in SPEAK_OF_IT}
FAST_TESTS = {
    "training": ("jobs/test_training_wording.py", "emulator/test_schedule.py", "emulator/test_loop.py"),
    "checkpoint": ("jobs/test_checkpoint_wording.py", "metrics/test_checkpoint_limit.py"),
    "probe": ("probing/test_probe_file.py",),
    "pack": ("jobs/test_pack_wording.py", "packing/test_pack_limit.py", "packing/test_pack_words.py"),
    "kvcache": ("jobs/kvcache/test_load.py",),
}
"""Kind -> tests of its own that take a moment: of its analysis, its wording, its settings."""
RESULTS = {"training": "train", "checkpoint": "checkpoint", "probe": "probe", "pack": "pack"}

PROGRAM = """
import contextlib, importlib, io, json, pkgutil, sys
import click
import pytest
import dlemu, datagen
from dlemu.cli import cli
from dlemu.report.page import render
from dlemu.results.kinds import kind_of

def has_page(result):
    try:
        kind = kind_of(result)
        return kind is not None and "<html" in render(kind.part("page")(result).page, [])
    except dlemu.DlemuError:
        return False

def told(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            cli.main(list(words), "dlemu", standalone_mode=False)
        except (dlemu.DlemuError, click.ClickException):
            return None
    return out.getvalue()

results, tests = (words.split(":") for words in sys.argv[1:])
pages = [has_page(result) for result in results]
help = told("--help")
told("train", "--help")  # a command that is not there is refused in words
failed = []
for package in (datagen, dlemu):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=failed.append):
        framework = any(name in module.name for name in ("tensorflow", "_tf_", "_torch", "dali"))
        if framework or module.name == "dlemu.__main__":
            continue
        try:
            importlib.import_module(module.name)
        except ImportError:
            failed.append(module.name)
print(json.dumps({"failed": sorted(set(failed)), "from": dlemu.__path__[0], "help": help, "pages": pages}))
quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
sys.exit(pytest.main([*quiet, "-m", "not slow", *tests]))
"""
"""In one process, for it takes seconds to import all: pages of results (without pictures, whose modules are imported
with all others), the list of commands, the import of every module, and tests."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "checkpoint", "probe"])
def test_the_others_are_whole(kind: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for package in ("datagen", "dlemu"):
        shutil.copytree(ROOT / package, site / package)  # with what is compiled already: it is as old as its source
    shutil.copytree(ROOT / "configs", site / "dlemu" / "configs")
    shutil.rmtree(site / "dlemu" / "jobs" / kind)
    shutil.copytree(ROOT / "tests", site / "tests", ignore=shutil.ignore_patterns("goldens", "fuzzing"))
    shutil.copy(ROOT / "pyproject.toml", site)
    results = [str(GOLDENS / result) for result in RESULTS.values()]
    tests = [f"tests/{path}" for other, paths in FAST_TESTS.items() if other != kind for path in paths]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, ":".join(results), ":".join(tests)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout.splitlines()[0])
    unexpected = [name for name in told["failed"] if not name.startswith(SPEAK_OF_IT[kind])]
    assert not unexpected
    assert all(any(name.startswith(known) for name in told["failed"]) for known in SPEAK_OF_IT[kind])
    assert told["from"] == str(site / "dlemu")
    assert "\n  compare " in told["help"]
    assert f"\n  {COMMANDS[kind]} " not in told["help"]
    assert told["pages"] == [other != kind for other in RESULTS]
