"""The settings of KV-cache offload, with the sizes of blocks and the times of prefills (formulas: docs/kvcache.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from dlemu.config.schema import BYTES, SECONDS, Unit, at_least

GB, TOKENS = Unit("GB"), Unit("tokens")
TFLOPS = {"a100": 312.0, "h100": 989.0, "h200": 989.0, "b200": 2250.0, "mi300x": 1307.0}
"""1e12 operations/s, dense bf16, from the vendors' data sheets: NVIDIA A100 80GB SXM, H100 SXM, H200 SXM, HGX B200 (one
of eight), AMD Instinct MI300X; figures with sparsity are halved."""
ALIGNMENT = 4096  # Shards are padded to a multiple of this, as engines do that read with O_DIRECT.


def aligned(exact_bytes: float) -> int:
    """Return bytes as stored: rounded up to a multiple of ALIGNMENT, at least one."""
    return max(1, math.ceil(exact_bytes / ALIGNMENT)) * ALIGNMENT


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
    loop: Literal["open", "closed"] = "open"
    """`open`: prompts arrive by the load's clock; `closed`: each user waits for its answers."""
    speed: Annotated[float, at_least(0.001, 1e6), Unit("times")] = 1.0
    """Multiply the arrival rate, or the users of a closed loop, by this."""
    seconds: Annotated[float, at_least(0), SECONDS] = 60.0
    """Duration of the load, after `speed` is applied; a trace is cut there; 0: the whole trace."""
    seed: Annotated[int, at_least(0, 2**63 - 1)] = 1
    """Seed of the random load."""
    users: Annotated[int, at_least(0, 10**6)] = 16
    """Users per rank of a random load or a closed loop; 0: those of `option`."""
    think_seconds: Annotated[float, at_least(0), SECONDS] = 10.0
    """Mean time between two prompts of a user; in a closed loop, after a first token."""
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
    """Memory of a rank that keeps blocks, in GB of the full-size model; emulated, not allocated."""
    capacity_gb: Annotated[float, at_least(0, 10**9), GB] = 0.0
    """Storage capacity per rank: beyond it the least recently used blocks are evicted; 0: no limit."""

    ttft: Annotated[float, at_least(0), SECONDS] = 0.0
    """The run passes when 95 % of the prompts have their first token (TTFT) within this time; 0: no limit."""
    load: Annotated[float, at_least(0), SECONDS] = 0.0
    """The run passes when 95 % of the loads from storage take no longer than this; 0: no limit."""

    def problems(self, where: str) -> Iterator[str]:
        """Yield a message for each combination of values that is not possible."""
        lacks_heads = not (self.kv_heads or self.latent_dim or self.option)  # `option` has heads of its own
        if self.layers and (lacks_heads or (self.kv_heads and self.latent_dim)):
            yield f"{where}.kv_heads and {where}.latent_dim: wanted one of them above 0"
        if self.layers and not self.option and not self.prefill_tokens_per_second and not self.parameters_billion:
            yield f"{where}.parameters_billion is 0: wanted it, or {where}.prefill_tokens_per_second"
        tp_fits = self.kv_heads % self.tp == 0 or self.tp % self.kv_heads == 0  # heads per shard, or shards per head
        if not self.latent_dim and not tp_fits:
            yield f"{where}.tp is {self.tp} with {self.kv_heads} heads: wanted a divisor, or a multiple, of the heads"
        if self.accelerators % self.tp:
            yield f"{where}.accelerators is {self.accelerators}: wanted a multiple of {where}.tp, which is {self.tp}"
        if self.trace and self.trace_block_tokens % self.block_tokens:
            multiple = f"{where}.trace_block_tokens, which is {self.trace_block_tokens}"
            yield f"{where}.block_tokens is {self.block_tokens}: wanted a divisor of {multiple}"
        if not self.users and not self.option:
            yield f"{where}.users is 0: wanted 1 at least, or {where}.option"
        if not self.think_seconds and not self.trace and self.loop == "open":
            yield f"{where}.think_seconds is 0: wanted more, or {where}.loop=closed, whose users wait for answers"
        if not self.trace and not self.seconds:
            yield f"{where}.seconds is 0: wanted the duration of the random load, or {where}.trace"

    @property
    def is_official(self) -> bool:
        """Whether the load is MLPerf Storage's, by `option`."""
        return self.option > 0

    @property
    def users_at_once(self) -> int:
        """Users of a rank in a closed loop, `speed` applied."""
        return max(1, round(self.users * self.speed))

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, summed over shards, before `shrink`.

        layers x heads x head_dim x 2 x element; with latent attention layers x latent_dim x element, in every shard.
        With `option`, `with_option_defaults` must have filled in its model first, here and for all bytes below.
        """
        if self.latent_dim:
            return self.layers * self.latent_dim * self.element_bytes * self.tp
        copies = max(1, self.tp // self.kv_heads)  # with more accelerators than heads, each head is stored repeatedly
        return self.layers * self.kv_heads * self.head_dim * 2 * self.element_bytes * copies

    @property
    def shard_bytes(self) -> int:
        """Bytes of one accelerator's shard of a block, as stored: divided by `shrink`, then padded."""
        return aligned(self.block_tokens * self.token_bytes / (self.tp * self.shrink))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block as stored, summed over shards."""
        return self.shard_bytes * self.tp

    def prefill_seconds(self, tokens: int, cached: int) -> float:
        """Return how long a copy of the model takes to prefill a prompt of `tokens`, of which the first are `cached`.

        2 operations per parameter and token, plus 4 x layers x attention_dim for each pair of tokens of which one
        attends to the other (Chowdhery et al. 2022, PaLM, appendix B, forward pass only), at `efficiency` of the
        accelerators' rate. `prefill_tokens_per_second`, if set, replaces the formula.
        """
        computed = tokens - cached
        if self.prefill_tokens_per_second:
            return computed / (self.prefill_tokens_per_second * self.tp)
        pairs = computed * (cached + computed / 2)
        operations = 2e9 * self.parameters_billion * computed + 4.0 * self.layers * self.attention_dim * pairs
        return operations / (TFLOPS[self.accelerator] * 1e12 * self.efficiency * self.tp)


SECTION = ("kv", KvSettings)
