"""A call that hangs in the kernel ends a run in time."""

from __future__ import annotations

import threading
import time

import pytest

from datagen.errors import DatasetError, DlemuError
from dlemu.comm import within


def test_what_is_done_in_time_is_returned_or_raised() -> None:
    assert within(60, lambda: 7, "counting") == 7

    def fail() -> None:
        raise DatasetError("no such file")

    with pytest.raises(DatasetError, match="no such file"):
        within(60, fail, "looking")


def test_what_hangs_is_named_and_left_behind() -> None:
    over = threading.Event()
    begun = time.monotonic()
    with pytest.raises(DlemuError, match=r"looking at /data took longer than 0\.05 s \(timeout_seconds\)"):
        within(0.05, lambda: over.wait(3600), "looking at /data")
    assert time.monotonic() - begun < 600
    over.set()
