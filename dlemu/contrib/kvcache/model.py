"""The served model: bytes of its KV cache and duration of its prefill. Formulas: docs/kvcache.md."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.contrib.kvcache.settings import KvSettings

TFLOPS = {"a100": 312.0, "h100": 989.0, "h200": 989.0, "b200": 2250.0, "mi300x": 1307.0}
"""1e12 operations/s, dense bf16, from the vendors' data sheets: NVIDIA A100 80GB SXM, H100 SXM, H200 SXM, HGX B200 (one
of eight), AMD Instinct MI300X; figures with sparsity are halved."""
ALIGNMENT = 4096
"""Shards are padded to a multiple of this, as engines do that read with O_DIRECT."""


def aligned(exact_bytes: float) -> int:
    """Return bytes as stored: at least one unit of ALIGNMENT, and whole ones."""
    return max(1, -int(-exact_bytes // ALIGNMENT)) * ALIGNMENT


@dataclass(frozen=True)
class Model:
    """Block sizes and prefill times of one copy of the model, which `kv.tp` accelerators share."""

    settings: KvSettings

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, summed over shards, before `kv.shrink`.

        layers x heads x head_dim x 2 x element; with latent attention layers x latent_dim x element, repeated in each
        shard.
        """
        kv = self.settings
        if kv.latent_dim:
            return kv.layers * kv.latent_dim * kv.element_bytes * kv.tp
        copies = max(1, kv.tp // kv.kv_heads)  # with more accelerators than heads, each head is kept several times
        return kv.layers * kv.kv_heads * kv.head_dim * 2 * kv.element_bytes * copies

    @property
    def shard_bytes(self) -> int:
        """Bytes of one accelerator's shard of a block, as stored: divided by `kv.shrink`, then padded."""
        kv = self.settings
        return aligned(kv.block_tokens * self.token_bytes / (kv.tp * kv.shrink))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block as stored, summed over shards."""
        return self.shard_bytes * self.settings.tp

    def prefill_seconds(self, cached: int, computed: int) -> float:
        """Return how long a copy of the model takes to compute `computed` tokens that follow `cached` cached ones.

        2 operations per parameter and token, plus 4 x layers x attention_dim for each pair of tokens of which one
        attends to the other (Chowdhery et al. 2022, PaLM, appendix B, forward pass only), at `kv.efficiency` of the
        accelerators' rate. `kv.prefill_tokens_per_second`, where set, replaces the formula.
        """
        kv = self.settings
        if kv.prefill_tokens_per_second:
            return computed / (kv.prefill_tokens_per_second * kv.tp)
        pairs = computed * (cached + computed / 2)
        operations = 2e9 * kv.parameters_billion * computed + 4.0 * kv.layers * kv.attention_dim * pairs
        return operations / (TFLOPS[kv.accelerator] * 1e12 * kv.efficiency * kv.tp)
