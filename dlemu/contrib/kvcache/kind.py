"""Declares KV-cache offload as a kind of job: its command, and the function that imports its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlemu.results.kinds import JobParts, Kind

if TYPE_CHECKING:  # every command imports this module
    from dlemu.config.schema import Workload


def has_model(workload: Workload) -> bool:
    """Return whether the workload serves a model: it sets `kv.layers`, or `kv.option`, which has a model of its own."""
    kv = workload.kinds.get("kv", {})
    return bool(kv.get("layers") or kv.get("option"))


def _kvcache() -> JobParts:
    from dlemu.contrib.kvcache.page import PARTS

    return PARTS


KIND = Kind(
    name="kvcache",
    noun="a run of KV-cache offload",
    command="kvcache",
    help="Serve a load of prompts with the KV cache on storage: latencies, utilisation, requests/s.",
    usage="""Replay a load of prompts whose KV cache is on storage.

    \b
    dlemu kvcache workload=llama3_1_8b kv.folder=/mnt/nvme/kv scale=laptop
    dlemu kvcache workload=llama3_1_70b kv.folder=/mnt/nvme/kv kv.trace=conversation.jsonl kv.seconds=300 kv.ttft=2
    dlemu kvcache workload=llama3_1_8b kv.folder=/mnt/nvme/kv kv.loop=closed kv.users=32 kv.think_seconds=0
    dlemu size    workload=llama3_1_70b kv.folder=/mnt/nvme/kv kv.ttft=2      # the most prompts/s
    dlemu kvcache workload=mlperf_kv kv.option=1 kv.folder=/mnt/nvme/kv       # MLPerf Storage's load

    Prompts arrive when the load says, whether the storage keeps up or not; with kv.loop=closed, each user waits for an
    answer before it sends the next. Accelerators are emulated. MLPerf Storage's load prints what its tool would publish
    next to the true rates. What is written is removed at the end. Formulas and what they leave out: docs/kvcache.md.
    """,
    load=_kvcache,
    wants=has_model,
    scaled_by="kv.speed",
)
