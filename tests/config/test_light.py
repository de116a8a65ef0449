"""Importing the settings must cost nothing: every `--help` does it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"hydra", "omegaconf", "antlr4", "numpy", "torch", "mpi4py", "rich", "pyarrow"}


def test_hydra_comes_with_the_first_word_that_is_not_plain() -> None:
    program = (
        "import sys, dlemu.config, dlemu.config.schema\n"
        "names = dlemu.config.workload_names()\n"
        f"assert 'unet3d' in names and not {HEAVY!r} & set(sys.modules), {HEAVY!r} & set(sys.modules)\n"
        "loaded = dlemu.config.load(['workload=unet3d', 'ranks=4', 'dataset.data_folder=/mnt/a'])\n"
        "dlemu.config.to_yaml(loaded)\n"
        "assert not {'hydra', 'omegaconf'} & set(sys.modules)\n"
        "dlemu.config.load(['reader.preprocess_time={mean: 1}'])\n"
        "assert 'hydra' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
