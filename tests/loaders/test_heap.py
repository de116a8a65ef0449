"""Freed memory that stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
from dlemu.loaders._process import keep_freed_memory
if {keep}:
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x") * 40_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def _faults(keep: bool) -> int:
    """Page faults of the second block of 40 MB, after the first was freed."""
    ran = subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def test_a_large_block_is_taken_from_memory_that_was_freed() -> None:
    ordinary = _faults(keep=False)
    if ordinary < 5:
        pytest.skip("this C library or kernel keeps freed blocks by itself")
    assert _faults(keep=True) < ordinary / 4
