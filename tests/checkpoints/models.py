"""Models for the tests of checkpoints."""

from __future__ import annotations

from typing import Any

from dlemu.config.schema import Model, Parallelism, Transformer


def transformer(*, layers: int, tensor: int = 1, pipeline: int = 1, zero_stage: int = 0, **shape: Any) -> Model:
    """Return a tiny transformer with changes: its dimensions, and `data` and `expert` of its parallelism."""
    parallelism = {key: shape.pop(key) for key in ("data", "expert") if key in shape}
    tiny: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 16,
        "ffn_hidden_size": 32,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
    }
    return Model(
        type="transformer",
        num_layers=layers,
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline, zero_stage=zero_stage, **parallelism),
        transformer=Transformer(**(tiny | shape)),
    )


SHAPES: dict[str, Model] = {
    "zero 3": transformer(layers=2, tensor=2, zero_stage=3),
    "a file a layer": transformer(layers=3, tensor=2, pipeline=2, zero_stage=1),
    "experts": transformer(layers=2, zero_stage=1, num_experts=4, expert=2, num_dense_layers=1),
    "of a size": Model(model_size_bytes=12345),
}

SMALL_WORDS = {
    "model.name": "small",
    "model.type": "transformer",
    "model.num_layers": "2",
    "model.parallelism": "{tensor: 1, pipeline: 1, zero_stage: 3}",
    "model.transformer": "{vocab_size: 512, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 4}",
    "workflow": "{train: false, checkpoint: true}",
}
"""Settings of a run that writes and reads checkpoints of a few megabytes."""
