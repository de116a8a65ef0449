"""A call that hangs in the kernel ends a run in time."""

from __future__ import annotations

import threading

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
    over, ended = threading.Event(), threading.Event()

    def hang() -> None:
        over.wait(60)
        ended.set()

    with pytest.raises(DlemuError, match=r"looking at /data took longer than 0\.05 s \(timeout_seconds\)"):
        within(0.05, hang, "looking at /data")
    assert not ended.is_set(), "it was not waited for"
    over.set()
    assert ended.wait(60), "and goes on in a thread"
