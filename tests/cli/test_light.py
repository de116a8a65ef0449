"""What every command costs before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dlemu.cli import COMMANDS

HEAVY = {"hydra", "msgspec", "numpy", "omegaconf", "psutil", "pyarrow", "rich", "torch", "yaml"}


def test_numpy_starts_no_threads_in_a_rank() -> None:
    code = "import os, dlemu.cli.train, numpy; print(len(os.listdir('/proc/self/task')))"
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 1


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom dlemu.cli import main\ntry: main()\n"
        "finally: print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("Usage: dlemu")
    assert set(ran.stderr.split()) & HEAVY == set()
