"""Without the folder of a kind of job, or of an optional part, the rest imports, and its commands are listed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlemu.contrib
from dlemu.cli import commands

ROOT = Path(__file__).parents[2]
NEEDS_IT = {
    "jobs/training": {f"dlemu.studies.{name}" for name in ("first_look", "predict", "size.find_size", "size.trials")},
    "jobs/probe": {"dlemu.studies.first_look"},
}
"""Folder -> modules that can't be imported without it: what is asked of that kind alone. Parts may need any of the
core's kinds."""
COMMANDS = {"jobs/training": {"train", "predict"}, "contrib/mlperf": {"mlperf", "audit"}, "contrib/dali": set[str]()}
"""Folder -> its commands, where they have another name."""
PARTS = [f"contrib/{path.parent.name}" for path in Path(dlemu.contrib.__path__[0]).glob("*/__init__.py")]
PROGRAM = """
import importlib, json, pkgutil
import datagen, dlemu
from dlemu.cli import commands

failed = []
for package in (datagen, dlemu):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=failed.append):
        framework = any(name in module.name for name in ("tensorflow", "_tf_", "_torch", "dali", ".tests"))
        if framework or module.name == "dlemu.__main__":
            continue
        try:
            importlib.import_module(module.name)
        except ImportError:
            failed.append(module.name)
print(json.dumps({"failed": sorted(set(failed)), "from": dlemu.__path__[0], "commands": list(commands())}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["jobs/training", "jobs/checkpoint", "jobs/probe", *sorted(PARTS)])
def test_the_rest_is_whole(gone: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for package in ("datagen", "dlemu"):
        shutil.copytree(ROOT / package, site / package)  # with what is compiled already: it is as old as its source
    shutil.copytree(ROOT / "configs", site / "dlemu" / "configs", dirs_exist_ok=True)
    shutil.rmtree(site / "dlemu" / gone)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    failed = {name for name in told["failed"] if gone in PARTS or not name.startswith("dlemu.contrib.")}
    assert failed == NEEDS_IT.get(gone, set())
    assert told["from"] == str(site / "dlemu")
    assert set(commands()) - set(told["commands"]) == COMMANDS.get(gone, {Path(gone).name})
