"""The whole replay, threads, clock and all, on a storage of known rate: loads take as long as theory has it."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from datagen.bulk_content import BulkContent
from datagen.storage import memory
from dlemu.config import load
from dlemu.contrib.kvcache.blocks import Content, FileBlocks, Shard
from dlemu.contrib.kvcache.fifo import fifo_load_seconds
from dlemu.contrib.kvcache.load import make_load
from dlemu.contrib.kvcache.mover import Mover
from dlemu.contrib.kvcache.plan import plan_rank
from dlemu.contrib.kvcache.replay import Replay, ServedPrompt
from dlemu.contrib.kvcache.settings import KvSettings

BYTES_PER_SECOND = 26e6


@dataclass(frozen=True)
class PipeBlocks(FileBlocks):
    """Reads come through one pipe, one after the other; writes cost nothing."""

    gate: threading.Lock = field(default_factory=threading.Lock)
    free: list[float] = field(default_factory=lambda: [0.0])

    def read(self, shard: Shard, buffer: memoryview) -> int:
        with self.gate:
            self.free[0] = max(self.free[0], time.monotonic()) + self.shard_bytes / BYTES_PER_SECOND
            until = self.free[0]
        call_ns = super().read(shard, buffer)
        time.sleep(max(0.0, until - time.monotonic()))
        return call_ns


@pytest.mark.slow
def test_percentiles_of_loads_are_those_of_theory_within_5_percent() -> None:
    workload = load(["workload=llama3_1_8b", "scale=laptop"])
    settings = replace(
        workload.section(KvSettings),
        users=24,
        think_seconds=6.0,
        seconds=20.0,
        prefill_tokens_per_second=1e7,
        accelerators=64,
        threads=8,
    )
    prompts = make_load(settings, 1)
    plan = plan_rank(settings, prompts, range(len(prompts)))
    blocks = PipeBlocks(memory.Storage(), "kv", Content(BulkContent(1), 0, settings), plan.model.shard_bytes)
    mover = Mover(blocks, threads=8, tp=1, objects=plan.objects, buffer_bytes=plan.model.shard_bytes, seconds=60.0)
    served: list[ServedPrompt] = []
    with closing(mover):
        Replay(plan, mover, on_served=served.append).run(time.monotonic_ns() + 10**8)
    read = sorted((one for one in served if one.reads), key=lambda one: one.arrived_ns)
    assert len(read) > 40
    seconds = np.array([(one.loaded_ns - one.arrived_ns) / 1e9 for one in read])
    sizes = np.array([len(one.reads) * plan.model.block_bytes for one in read])
    arrived = np.array([one.arrived_ns / 1e9 for one in read])
    theory = fifo_load_seconds(arrived, sizes, BYTES_PER_SECOND / 1e9)
    assert np.percentile(theory, 50) > 1, "there is a queue: what a busy host adds is little beside it"
    for share in (50, 95):
        assert np.percentile(seconds, share) == pytest.approx(np.percentile(theory, share), rel=0.05)
