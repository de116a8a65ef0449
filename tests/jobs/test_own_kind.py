"""A kind of job of another distribution is one folder; without the folder of a kind or a part the rest is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dlemu.contrib
from datagen.errors import UserError
from dlemu.cli import commands

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "dlemu_stat"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that have the package `dlemu_stat`, as pip would have installed it."""
    site, info = tmp_path / "site", tmp_path / "site" / "dlemu_stat-1.0.dist-info"
    shutil.copytree(EXAMPLE, site / "dlemu_stat", ignore=shutil.ignore_patterns("__pycache__"))
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlemu-stat\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dlemu.jobs]\nstat = dlemu_stat\n")
    return {**os.environ, "PYTHONPATH": str(site)}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}").touch()
    return folder


def run(environment: dict[str, str], *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", *words], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def loaded(environment: dict[str, str], folder: Path, use: str) -> str:
    """Load a result in a process of its own and use it there as `run`; return what was printed."""
    code = f"import dlemu; run = dlemu.load_result({str(folder)!r}); {use}"
    return run(environment, "timeit", "-n1", "-r1", code).stdout


@pytest.mark.slow
def test_it_runs_and_its_result_is_shown_read_and_drawn(installed: dict[str, str], files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    assert "  stat " in run(installed, "dlemu", "help", "--all").stdout
    assert "stat.folder=/mnt/nvme/files" in run(installed, "dlemu", "stat", "--help").stdout
    words = [f"stat.folder={files}", "stat.rounds=3", "ranks=2", f"output.folder={folder}"]
    assert "rounds: 3" in run(installed, "dlemu", "stat", *words, "--cfg").stdout
    done = run(installed, "dlemu", "stat", *words)
    assert "30 calls, " in done.stdout
    assert f"report: {folder}/report.html" in done.stdout
    assert "30 calls, " in (folder / "report.html").read_text()
    assert "30 calls" in (folder / "log.txt").read_text()
    loaded(installed, folder, "assert (run.summary.kind, run.summary.calls, len(run.rows)) == ('stat', 30, 30)")
    again = run(installed, "dlemu", "stat", *words[:-1], f"output.folder={tmp_path / 'json'}", "--json")
    assert json.loads(again.stdout)["calls"] == 30
    refused = run(installed, "dlemu", "stat", *words, status=2)
    assert "holds another result" in refused.stderr
    missing = run(installed, "dlemu", "stat", f"stat.folder={tmp_path}/no", f"output.folder={tmp_path}/x", status=2)
    assert "stat.folder is" in missing.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_it_is_swept_and_compared_and_a_sweep_goes_on(installed: dict[str, str], files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = [f"stat.folder={files}", "stat.rounds=1,2", f"output.folder={folder}", "output.report=false"]
    assert "call" in run(installed, "dlemu", "sweep", *words).stdout
    answer = json.loads((folder / "sweep.json").read_text())
    assert [point["figures"]["kind"] for point in answer["points"]] == ["stat", "stat"]
    finished = run(installed, "dlemu", "sweep", *words, status=2)
    assert "holds a finished sweep" in finished.stderr
    answer["complete"], answer["points"] = False, answer["points"][:1]
    (folder / "sweep.json").write_text(json.dumps(answer))
    again = run(installed, "dlemu", "sweep", *words)
    assert "2 runs, 1 of them done" in again.stderr
    compared = run(installed, "dlemu", "compare", str(folder / "point-01"), str(folder / "point-02"), "--json")
    assert "mean_us" in json.loads(compared.stdout)["runs"][0]["metrics"]


@pytest.mark.slow
def test_what_its_ranks_had_measured_outlives_a_kill_of_all(
    installed: dict[str, str], files: Path, tmp_path: Path
) -> None:
    """Nobody is left to save it: it is read from live/."""
    folder = tmp_path / "result"
    words = [f"stat.folder={files}", "stat.rounds=1000000", "ranks=2", f"output.folder={folder}", "output.report=false"]
    process = subprocess.Popen([sys.executable, "-m", "dlemu", "stat", *words], env=installed, start_new_session=True)
    logs = [folder / "live" / f"rows_{rank:05d}" for rank in range(2)]
    until = time.monotonic() + 120
    while not all(log.exists() and log.stat().st_size > 1000 for log in logs):
        assert time.monotonic() < until, "the ranks measured nothing"
        assert process.poll() is None
        time.sleep(0.05)
    look = f"from dlemu.runner.follow import follow_run; print(*next(follow_run({str(folder)!r})).progress.figures)"
    assert re.search(r"one call [0-9.]+ us", run(installed, "timeit", "-n1", "-r1", look).stdout)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(120)
    text = loaded(
        installed, folder, "assert run.summary.calls > 0 and not run.summary.complete; print(run.summary.failure)"
    )
    assert "killed" in text or "SIGKILL" in text
    assert "calls" in run(installed, "dlemu", "report", str(folder)).stdout


@pytest.mark.slow
def test_its_result_is_not_read_where_it_is_not_installed(
    installed: dict[str, str], files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "result"
    run(installed, "dlemu", "stat", f"stat.folder={files}", f"output.folder={folder}", "output.report=false")
    monkeypatch.syspath_prepend(str(tmp_path / "site" / "nowhere"))
    with pytest.raises(UserError, match="no kind of job 'stat' here: install the package that has it"):
        dlemu.load_result(str(folder))
    shown = subprocess.run(
        [sys.executable, "-m", "dlemu", "report", str(folder)], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 2
    assert "install the package that has it" in shown.stderr
    assert "dlemu_stat" not in sys.modules


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
