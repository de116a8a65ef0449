"""How much of dlemu a minimal run takes: what a reader must know to follow one, and what each start imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlemu.metrics.verdict import COMPLETED
from tests.budget import read_budget
from tests.datasets import make_dataset
from tests.e2e.harness import CEILING, small_run

ROOT = Path(__file__).parents[2]
FUNCTIONS, FILES, MODULES = (read_budget()["whole"][f"train_{what}"] for what in ("functions", "files", "modules"))

PROGRAM = """
import os, sys, threading
seen, root = set(), os.getcwd() + "/"
out = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or code in seen:
        return
    seen.add(code)
    if code.co_filename.startswith((root + "dlemu/", root + "datagen/")):
        os.write(out, f"{code.co_filename} {code.co_qualname} {code.co_name} {code.co_flags & 2}\\n".encode())
sys.path.insert(0, root)
from dlemu.__main__ import main
threading.setprofile(note)
sys.setprofile(note)
import dlemu.cli
main()
"""
"""Runs the command line, and notes what is called in it and in all that it forks; the body of a class has no flag 2."""


RUNS, LONG_STEPS = 5, "train.computation_time=0.1"
"""A run that waits for its data because the host is busy also looks for the cause, which is not the minimum: so its
steps are long beside such waits, and of several runs what all of them call counts."""


@pytest.mark.slow
def test_a_minimal_run_takes_little_of_dlemu(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", num_files_train=48, record_length_bytes=20_000, record_length_bytes_stdev=5_000)
    found = called_in(tmp_path, 0)
    for number in range(1, RUNS):
        if len(functions_of(found)) <= FUNCTIONS:
            break
        found &= called_in(tmp_path, number)
    functions = functions_of(found)
    modules = {file for file, _, last, _ in found if last == "<module>"}
    files = {file for file, _ in functions}
    assert "Summary" not in {name for _, name in functions}, "bodies of classes are no functions"
    assert len(functions) <= FUNCTIONS, sorted(functions)
    assert len(files) <= FILES, sorted(files)
    assert len(modules) <= MODULES, sorted(modules)


def called_in(folder: Path, number: int) -> set[tuple[str, ...]]:
    """Return what a run called: file, qualified name, name, and whether it is a function."""
    called = folder / f"called-{number}"
    words = small_run(folder / f"run-{number}", folder / "data", CEILING, "ranks=1", "train.epochs=1", LONG_STEPS)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(called), "train", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in COMPLETED, ran.stderr
    return {tuple(line.split()) for line in called.read_text().splitlines()}


def functions_of(found: set[tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(file, name) for file, name, last, local in found if local == "2" and not last.startswith("<")}
