"""`dlemu train --export-dlio FILE`."""

from __future__ import annotations

import os

from dlemu.config.schema import Workload
from dlemu.emulator.files import write_text
from dlemu.mlperf.dlio_export import dlio_yaml


def export(workload: Workload, path: str) -> None:
    """Write the workload as DLIO's file and say so; raises UserError."""
    path = os.path.abspath(path)
    write_text(os.path.dirname(path), os.path.basename(path), dlio_yaml(workload))
    print(f"written: {path}")
