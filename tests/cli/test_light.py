"""What every command costs before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys


def test_numpy_starts_no_threads_in_a_rank() -> None:
    code = "import os, dlemu.cli.train, numpy; print(len(os.listdir('/proc/self/task')))"
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ran = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 1
