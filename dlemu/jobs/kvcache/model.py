"""The model that is served, as far as its KV cache and the time of its prefill go. Formulas: docs/kvcache.md."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.jobs.kvcache.settings import KvSettings

TFLOPS = {"a100": 312.0, "h100": 989.0, "h200": 989.0, "b200": 2250.0, "mi300x": 1307.0}
"""1e12 operations/s, dense bf16, of the vendors' data sheets: NVIDIA A100 80GB SXM, H100 SXM, H200 SXM, HGX B200 (one
of eight), AMD Instinct MI300X; figures with sparsity halved."""
ALIGNMENT = 4096
"""Shards are padded to it, as engines do that read past the page cache."""


@dataclass(frozen=True)
class Model:
    """Sizes and times of one copy of the model, which `kv.tp` accelerators share."""

    settings: KvSettings

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, all shards together, before `kv.shrink`.

        layers x heads x head_dim x 2 x element; with latent attention layers x latent_dim x element, in each shard the
        same again.
        """
        kv = self.settings
        if kv.latent_dim:
            return kv.layers * kv.latent_dim * kv.element_bytes * kv.tp
        copies = max(1, kv.tp // kv.kv_heads)  # more accelerators than heads: some keep the same head
        return kv.layers * kv.kv_heads * kv.head_dim * 2 * kv.element_bytes * copies

    @property
    def shard_bytes(self) -> int:
        """Bytes of what one accelerator stores of a block."""
        kv = self.settings
        exact = kv.block_tokens * self.token_bytes / (kv.tp * kv.shrink)
        return max(1, -int(-exact // ALIGNMENT)) * ALIGNMENT

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, all shards together, as it is stored."""
        return self.shard_bytes * self.settings.tp

    def prefill_seconds(self, cached: int, computed: int) -> float:
        """Return how long a copy computes on so many tokens behind those that are cached.

        2 operations for each parameter and token, and 4 x layers x attention_dim for each pair of tokens of which one
        attends to the other (Chowdhery et al. 2022, PaLM, appendix B, forward pass alone), at `kv.efficiency` of the
        accelerators' rate. With `kv.prefill_tokens_per_second` just that.
        """
        kv = self.settings
        if kv.prefill_tokens_per_second:
            return computed / (kv.prefill_tokens_per_second * kv.tp)
        pairs = computed * (cached + computed / 2)
        operations = 2e9 * kv.parameters_billion * computed + 4.0 * kv.layers * kv.attention_dim * pairs
        return operations / (TFLOPS[kv.accelerator] * 1e12 * kv.efficiency * kv.tp)
