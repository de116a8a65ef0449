"""The settings of KV-cache offload: the model, the load, the memory tiers, and how blocks are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from dlemu.config.schema import BYTES, MORE_THAN_0, SECONDS, Unit, at_least

GB, TOKENS = Unit("GB"), Unit("tokens")


@dataclass(frozen=True, kw_only=True)
class KvSettings:
    """KV-cache offload: which model is served, which prompts arrive, and where the blocks are stored."""

    option: Annotated[int, at_least(0, 3)] = 0
    """The official load: option 1, 2 or 3 of MLPerf Storage v3.0's kv_cache; 0: prompts from a trace, or random."""
    layers: Annotated[int, at_least(0, 10_000)] = 0
    """Layers of the model that keep keys and values; 0: no model is served, or with `option` its own model."""
    kv_heads: Annotated[int, at_least(0, 100_000)] = 0
    """Key-value heads of a layer; 0 with multi-head latent attention (`latent_dim`)."""
    head_dim: Annotated[int, at_least(1, 100_000)] = 128
    """Elements of one head's key; its value has as many."""
    latent_dim: Annotated[int, at_least(0, 100_000)] = 0
    """Multi-head latent attention: elements per token and layer (kv_lora_rank + qk_rope_head_dim)."""
    element_bytes: Annotated[int, at_least(1, 8), BYTES] = 2
    """Bytes of one element of the cache: 2 for bf16 and fp16, 1 for fp8."""
    attention_dim: Annotated[int, at_least(0, 10**6)] = 0
    """Query heads times head dimension, from which the operations of attention are computed."""
    parameters_billion: Annotated[float, at_least(0, 10**6), Unit("1e9")] = 0.0
    """Parameters used per token; for a mixture of experts, the active ones."""
    tp: Annotated[int, at_least(1, 1024)] = 1
    """Tensor parallelism: accelerators that share one copy of the model; each stores its own shard of every block."""
    accelerator: Literal["a100", "h100", "h200", "b200", "mi300x"] = "h100"
    """Emulated accelerator; its dense bf16 rate gives the duration of a prefill (docs/kvcache.md)."""
    efficiency: Annotated[float, at_least(0.01, 1), Unit("share")] = 0.5
    """Share of that rate that a prefill reaches."""
    prefill_tokens_per_second: Annotated[float, at_least(0), Unit("tokens/s")] = 0.0
    """Prefill rate of one accelerator, as you measured it; 0: computed by the formula of docs/kvcache.md."""
    accelerators: Annotated[int, at_least(0, 10**6)] = 0
    """Accelerators per rank, a multiple of `tp`; 0: as many as would be busy half of the time."""
    shrink: Annotated[int, at_least(1, 4096)] = 1
    """Divide the bytes per token by this number; times and tokens stay the same (for `scale=laptop`)."""

    trace: str = ""
    """File of prompts, one line of JSON each (Mooncake's format); empty: prompts are generated at random."""
    trace_block_tokens: Annotated[int, at_least(1, 65_536), TOKENS] = 512
    """Tokens that each of the trace's `hash_ids` stands for."""
    speed: Annotated[float, at_least(0.001, 1e6), Unit("times")] = 1.0
    """Multiply the arrival rate by this: prompts per second, and so the users they come from."""
    seconds: Annotated[float, at_least(0), SECONDS] = 60.0
    """Duration of the load, after `speed` is applied; a trace is cut there; 0: the whole trace."""
    seed: Annotated[int, at_least(0, 2**63 - 1)] = 1
    """Seed of the random load."""
    users: Annotated[int, at_least(0, 10**6)] = 16
    """Users per rank of the random load, each with one conversation after another; 0 with `option`: its own number."""
    think_seconds: Annotated[float, MORE_THAN_0, SECONDS] = 10.0
    """Mean time between two prompts of a user."""
    turns: Annotated[float, at_least(1, 1000)] = 5.0
    """Mean number of prompts in a random conversation."""
    prompt_tokens: Annotated[int, at_least(1, 10**6), TOKENS] = 4096
    """Mean tokens of the first prompt of a random conversation, its system prompt aside."""
    turn_tokens: Annotated[int, at_least(1, 10**6), TOKENS] = 512
    """Mean tokens that each further prompt adds."""
    output_tokens: Annotated[int, at_least(1, 10**6), TOKENS] = 256
    """Mean tokens of a random answer; the next prompt contains it."""
    system_prompts: Annotated[int, at_least(0, 10**6)] = 4
    """System prompts: random conversations share them, and each begins with one."""
    system_tokens: Annotated[int, at_least(0, 10**6), TOKENS] = 1024
    """Tokens of a system prompt."""

    folder: str = "./kv"
    """Folder of the blocks; a run removes at its end what it wrote there."""
    block_tokens: Annotated[int, at_least(1, 65_536), TOKENS] = 256
    """Tokens of a block, the unit of storing: vLLM has 16 to 256, SGLang 64, LMCache 256, Mooncake 512."""
    odirect: bool = True
    """Write and read without the page cache (O_DIRECT)."""
    threads: Annotated[int, at_least(1, 512)] = 16
    """Threads per rank that read and write; queued reads go before queued writes."""
    transfer_size: Annotated[int, Meta(ge=4096, le=256 << 20, multiple_of=4096), BYTES] = 8388608
    """Maximum bytes of one read or write call: a multiple of 4096."""
    verify: bool = False
    """Compare every byte that is read (costs CPU); without it, only the stamp in every 4096 bytes."""
    memory_gb: Annotated[float, at_least(0, 10**9), GB] = 0.0
    """Memory per rank (accelerators' and host's) that keeps blocks, in GB of the full-size model; emulated."""
    capacity_gb: Annotated[float, at_least(0, 10**9), GB] = 0.0
    """Storage capacity per rank: beyond it the least recently used blocks are evicted; 0: no limit."""

    ttft: Annotated[float, at_least(0), SECONDS] = 0.0
    """The run passes when 95 % of the prompts have their first token (TTFT) within this time; 0: no limit."""
    load: Annotated[float, at_least(0), SECONDS] = 0.0
    """The run passes when 95 % of the loads from storage take no longer than this; 0: no limit."""

    def problems(self, where: str) -> Iterator[str]:
        """Yield a message for each combination of values that is not possible."""
        heads, latent = bool(self.kv_heads), bool(self.latent_dim)
        if self.layers and heads == latent and (latent or not self.option):  # `option` has heads of its own
            yield f"{where}.kv_heads and {where}.latent_dim: wanted one of them above 0"
        if self.layers and not self.option and not self.prefill_tokens_per_second and not self.parameters_billion:
            yield f"{where}.parameters_billion is 0: wanted it, or {where}.prefill_tokens_per_second"
        if self.latent_dim == 0 and self.kv_heads % self.tp and self.tp % max(1, self.kv_heads):
            yield f"{where}.tp is {self.tp} with {self.kv_heads} heads: wanted a divisor, or a multiple, of the heads"
        if self.accelerators % self.tp:
            yield f"{where}.accelerators is {self.accelerators}: wanted a multiple of {where}.tp, which is {self.tp}"
        if self.trace and self.trace_block_tokens % self.block_tokens:
            yield (
                f"{where}.block_tokens is {self.block_tokens}: wanted a divisor of {where}.trace_block_tokens, "
                f"which is {self.trace_block_tokens}"
            )
        if not self.users and not self.option:
            yield f"{where}.users is 0: wanted 1 at least, or {where}.option"
        if not self.trace and not self.seconds:
            yield f"{where}.seconds is 0: wanted the duration of the random load, or {where}.trace"


SECTION = ("kv", KvSettings)
