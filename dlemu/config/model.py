"""A model as far as its checkpoints are concerned: sizes of its parts, and how it is split over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from datagen.settings import BYTES, MAX_BYTES, Range, at_least, positive_or

Datatype = Literal["fp16", "bf16", "fp32", "fp64", "int8", "uint8"]
"""DLIO's names of the types of a tensor's elements."""
DATATYPE_BYTES: dict[str, int] = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "int8": 1, "uint8": 1}
"""Bytes of one element."""
MOST_PROCESSES = 10**6  # far beyond any job; tensor x pipeline x expert still fits 64 bits
assert tuple(DATATYPE_BYTES) == get_args(Datatype)


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How a model is split over ranks. Defaults are DLIO's."""

    tensor: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Ranks that share each matrix."""
    pipeline: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Stages that share the layers."""
    data: Annotated[int, positive_or("-1 for as many as the ranks allow")] = -1
    """Copies of the model; -1: as many as the ranks allow. `checkpoint.mode=subset` needs it."""
    zero_stage: Annotated[int, Range(0, 3, "0 to 3")] = 0
    """ZeRO stage. 0: one copy writes all; 1, 2: each writes its part of the optimizer; 3: and its part of the model."""
    expert: Annotated[int, at_least(1, MOST_PROCESSES)] = 1
    """Ranks over which the experts of a layer are distributed; they are part of the data-parallel ones."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """The sizes of a transformer with gated feed-forward layers. Defaults are DLIO's."""

    vocab_size: Annotated[int, at_least(1)] = 32000
    """Tokens of the vocabulary: rows of the embedding, columns of the output layer."""
    hidden_size: Annotated[int, at_least(1)] = 2048
    """Width of the model: elements of a token's vector between layers."""
    ffn_hidden_size: Annotated[int, at_least(1)] = 8192
    """Inner width of a feed-forward network: of its gate and of its up projection."""
    num_attention_heads: Annotated[int, at_least(1)] = 32
    """Heads of the queries."""
    num_kv_heads: Annotated[int, at_least(1)] = 8
    """Heads of the keys and values; fewer than `num_attention_heads` in grouped-query attention."""
    head_dim: Annotated[int, at_least(0)] = 0
    """Elements of one attention head; 0 is hidden_size // num_attention_heads."""
    num_experts: Annotated[int, at_least(0, 10**5)] = 0
    """Experts of each layer, among which a router chooses; 0: every layer has one feed-forward network."""
    moe_ffn_hidden_size: Annotated[int, at_least(0)] = 0
    """Width of one expert; 0 is `ffn_hidden_size`."""
    num_shared_experts: Annotated[int, at_least(0)] = 0
    """Experts of each layer that take every token."""
    num_dense_layers: Annotated[int, at_least(0)] = 0
    """The first layers that have no experts but one network of `ffn_hidden_size`."""


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str = "default"
    """The workload's name in results and in their folder; by default that of its file."""
    type: str = ""
    """`transformer`: a checkpoint has the layers of section `transformer`; any other: also `model_size_bytes`."""
    model_size_bytes: Annotated[int, at_least(0, MAX_BYTES), BYTES] = 10240
    """Bytes of one checkpoint of a model that is not described by its layers."""
    num_layers: Annotated[int, Range(-1, 10**4, "1 to 10000, or -1 if they are not known")] = -1
    """Layers of a transformer; -1: not known."""
    model_datatype: Datatype = "fp16"
    """Type of the model's numbers in a checkpoint."""
    optimizer_datatype: Datatype = "fp32"
    """Type of the optimizer's numbers in a checkpoint."""
    parallelism: Parallelism = Parallelism()
    """How the model is split over ranks."""
    transformer: Transformer = Transformer()
    """Widths and heads of a transformer."""
    layer_parameters: Annotated[tuple[int, ...], BYTES] = ()
    """Bytes of each tensor of a layer, before it is split by `parallelism.tensor` (DLIO's older way)."""
    optimization_groups: Annotated[tuple[int, ...], BYTES] = ()
    """Bytes of each group of the optimizer on each rank, which is stored three times (DLIO's older way)."""

    @property
    def has_layers(self) -> bool:
        """Whether its checkpoint consists of layers rather than only of `model_size_bytes`."""
        return self.num_layers > 0

    @property
    def has_size(self) -> bool:
        """Whether the size of its checkpoints is set; the default, DLIO's, is too small for any model."""
        return self.has_layers or self.model_size_bytes != Model.model_size_bytes or bool(self.optimization_groups)
