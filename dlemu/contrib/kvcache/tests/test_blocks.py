"""Blocks on the storage: no call to the system that an engine would not make, but for the name and lock of a part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datagen.buffers import AlignedBuffer
from datagen.bulk_content import BulkContent
from datagen.storage import posix
from datagen.storage.storage_base import StorageSpec
from dlemu.contrib.kvcache.blocks import Blocks, Content, FileBlocks, Shard, open_slots
from dlemu.contrib.kvcache.settings import KvSettings

SHARD, KV = 128 * 4096, KvSettings(odirect=False)
CONTENT = Content(BulkContent(7), 3, KV)
_MODULES = ("posix", "fcntl")
"""Whose functions are calls to the system, but for those that only look at words."""
_WORDS = ("fspath",)


def calls_of(move: Callable[[Shard, memoryview], int], shard: Shard, buffer: memoryview) -> list[str]:
    """Return the calls to the system by which a shard is moved, in their order."""
    calls: list[str] = []

    def look(frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ in _MODULES and function.__name__ not in _WORDS:
            calls.append(function.__name__)

    sys.setprofile(look)
    try:
        move(shard, buffer)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_is_opened_once_written_at_once_and_renamed(direct: bool, tmp_path: Path) -> None:
    storage = posix.Storage(StorageSpec(direct=direct, direct_writes=direct))
    blocks, buffer = FileBlocks(storage, str(tmp_path), CONTENT, SHARD), AlignedBuffer(SHARD).view(SHARD)
    blocks.write(Shard(1, 0), buffer)  # the first one makes the pool that content is made of
    assert calls_of(blocks.write, Shard(0, 0), buffer) == ["urandom", "open", "flock", "pwrite", "close", "rename"]
    assert calls_of(blocks.read, Shard(0, 0), buffer) == ["open", "fstat", "preadv", "close"]


def test_a_slot_is_moved_by_one_call(tmp_path: Path) -> None:
    blocks: Blocks = open_slots(str(tmp_path), CONTENT, SHARD)
    buffer = AlignedBuffer(SHARD).view(SHARD)
    blocks.reserve(1)
    blocks.write(Shard(1, 0), buffer)
    blocks.reserve(0)
    assert calls_of(blocks.write, Shard(0, 0), buffer) == ["pwrite"]
    assert calls_of(blocks.read, Shard(0, 0), buffer) == ["preadv"]
    blocks.close()
