"""The settings of KV-cache offload: the model, the load, the tiers, and how blocks are on the storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from datagen.ranges import BYTES, MORE_THAN_0, SECONDS, Range, Unit, at_least

GB, TOKENS = Unit("GB"), Unit("tokens")


@dataclass(frozen=True, kw_only=True)
class KvSettings:
    """KV-cache offload: which model is served, which prompts arrive, and where the blocks are."""

    option: Annotated[int, Range(0, 3, "0 to 3")] = 0
    """The official load: option 1, 2 or 3 of MLPerf Storage v3.0's kv_cache; 0: prompts of a trace, or drawn."""
    layers: Annotated[int, at_least(0, 10_000)] = 0
    """Layers of the model that keep keys and values; 0: no model is served, or with `option` the option's."""
    kv_heads: Annotated[int, at_least(0, 100_000)] = 0
    """Heads of keys and values in a layer; 0 with multi-head latent attention (`latent_dim`)."""
    head_dim: Annotated[int, at_least(1, 100_000)] = 128
    """Elements of a head's key, and of its value."""
    latent_dim: Annotated[int, at_least(0, 100_000)] = 0
    """Multi-head latent attention: elements of a token in a layer (kv_lora_rank + qk_rope_head_dim)."""
    element_bytes: Annotated[int, at_least(1, 8), BYTES] = 2
    """Of an element of the cache: 2 for bf16 and fp16, 1 for fp8."""
    attention_dim: Annotated[int, at_least(0, 10**6)] = 0
    """Query heads times head dimension, for the work of attention."""
    parameters_billion: Annotated[float, at_least(0, 10**6), Unit("1e9")] = 0.0
    """Parameters that a token uses; of a mixture of experts the active ones."""
    tp: Annotated[int, at_least(1, 1024)] = 1
    """Accelerators that share one copy of the model; each stores its own shard of a block."""
    accelerator: Literal["a100", "h100", "h200", "b200", "mi300x"] = "h100"
    """By its dense bf16 rate, for the time of a prefill (docs/kvcache.md)."""
    efficiency: Annotated[float, Range(0.01, 1, "0.01 to 1"), Unit("share")] = 0.5
    """Share of that rate that a prefill reaches."""
    prefill_tokens_per_second: Annotated[float, at_least(0), Unit("tokens/s")] = 0.0
    """Of one accelerator, as you measured it; 0 takes the formula."""
    accelerators: Annotated[int, at_least(0, 10**6)] = 0
    """Of each rank, a multiple of `tp`; 0: as many as are busy half of the time."""
    shrink: Annotated[int, at_least(1, 4096)] = 1
    """Divide the bytes of a token by this much; times and tokens stay (for `scale=laptop`)."""

    trace: str = ""
    """File of prompts, one line of JSON each (Mooncake's format); empty draws them."""
    trace_block_tokens: Annotated[int, at_least(1, 65_536), TOKENS] = 512
    """Tokens that one of the trace's `hash_ids` stands for."""
    speed: Annotated[float, Range(0.001, 1e6, "0.001 to 1000000"), Unit("times")] = 1.0
    """The load runs this many times as fast: prompts, and the users they come from, per second."""
    seconds: Annotated[float, at_least(0), SECONDS] = 60.0
    """Length of the load as it runs: drawn for so long, or so much of the trace; 0 takes the whole trace."""
    seed: Annotated[int, at_least(0, 2**63 - 1)] = 1
    """Of the drawn load."""
    users: Annotated[int, at_least(0, 10**6)] = 16
    """Of the drawn load, for each rank: each has one conversation after the other; 0 with `option`: the option's."""
    think_seconds: Annotated[float, MORE_THAN_0, SECONDS] = 10.0
    """Mean time between two prompts of a user."""
    turns: Annotated[float, Range(1, 1000, "1 to 1000")] = 5.0
    """Of a drawn conversation, mean."""
    prompt_tokens: Annotated[int, at_least(1, 10**6), TOKENS] = 4096
    """What the first prompt of a drawn conversation brings along, mean."""
    turn_tokens: Annotated[int, at_least(1, 10**6), TOKENS] = 512
    """What each further prompt adds, mean."""
    output_tokens: Annotated[int, at_least(1, 10**6), TOKENS] = 256
    """Of a drawn answer, mean; the next prompt contains it."""
    system_prompts: Annotated[int, at_least(0, 10**6)] = 4
    """Prefixes that drawn conversations share, one each."""
    system_tokens: Annotated[int, at_least(0, 10**6), TOKENS] = 1024
    """Of such a prefix."""

    folder: str = "./kv"
    """Folder of the blocks; what a run writes there it removes at its end."""
    layout: Literal["files", "slots"] = "files"
    """`files`: a file (or an object) for each block and shard; `slots`: offsets in one file of each rank."""
    block_tokens: Annotated[int, at_least(1, 65_536), TOKENS] = 256
    """Tokens of a block, the unit in which engines store: vLLM 16 to 256, SGLang 64, LMCache 256, Mooncake 512."""
    odirect: bool = True
    """Write and read without the page cache (O_DIRECT)."""
    threads: Annotated[int, Range(1, 512, "1 to 512")] = 16
    """Of each rank, that read and write; reads go first."""
    transfer_size: Annotated[int, Range(4096, 256 << 20, "4096 to 268435456 (256 MiB)"), BYTES] = 8388608
    """Most bytes of one read or write call: a multiple of 4096."""
    verify: bool = False
    """Compare every byte that is read (costs CPU); without it the stamp of every 4096 bytes is compared."""
    gpu_gb: Annotated[float, at_least(0, 10**9), GB] = 0.0
    """Memory of each rank's accelerators that keeps blocks, as of the full-size model; counted, not stored."""
    dram_gb: Annotated[float, at_least(0, 10**9), GB] = 0.0
    """Memory of each rank's host that keeps blocks, as of the full-size model; counted, not stored."""
    capacity_gb: Annotated[float, at_least(0, 10**9), GB] = 0.0
    """What each rank may fill on the storage: the blocks used least recently go first; 0: no limit."""

    ttft: Annotated[float, at_least(0), SECONDS] = 0.0
    """The run passes when 95 % of the prompts have their first token within this time; 0: no limit."""
    load: Annotated[float, at_least(0), SECONDS] = 0.0
    """The run passes when 95 % of the loads from storage take no longer than this; 0: no limit."""
    pipe_gb_per_second: Annotated[float, at_least(0), Unit("GB/s")] = 0.0
    """Rate of the storage as you measured it, for the FIFO model next to the result; 0: what this run got."""

    def problems(self, where: str) -> Iterator[str]:
        """Name values that can't be together."""
        if self.layers and bool(self.kv_heads) == bool(self.latent_dim):
            yield f"{where}.kv_heads and {where}.latent_dim: wanted one of them above 0"
        if self.layers and not self.option and not self.prefill_tokens_per_second and not self.parameters_billion:
            yield f"{where}.parameters_billion is 0: wanted it, or {where}.prefill_tokens_per_second"
        if self.latent_dim == 0 and self.kv_heads % self.tp and self.tp % max(1, self.kv_heads):
            yield f"{where}.tp is {self.tp} with {self.kv_heads} heads: wanted a divisor, or a multiple, of the heads"
        if self.accelerators % self.tp:
            yield f"{where}.accelerators is {self.accelerators}: wanted a multiple of {where}.tp, which is {self.tp}"
        if self.transfer_size % 4096:
            yield f"{where}.transfer_size is {self.transfer_size}: wanted a multiple of 4096"
        if self.trace and self.trace_block_tokens % self.block_tokens:
            yield (
                f"{where}.block_tokens is {self.block_tokens}: wanted a divisor of {where}.trace_block_tokens, "
                f"which is {self.trace_block_tokens}"
            )
        if not self.users and not self.option:
            yield f"{where}.users is 0: wanted 1 at least, or {where}.option"
        if not self.trace and not self.seconds:
            yield f"{where}.seconds is 0: wanted the seconds of the drawn load, or {where}.trace"


SECTION = ("kv", KvSettings)
