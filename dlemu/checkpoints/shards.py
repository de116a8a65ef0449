"""Which files a rank writes of a checkpoint, and which tensors are in each: arithmetic, nothing is read or made.

Names, counts and sizes are those of DLIO (`BaseCheckpointing` of DLIO 2.0 and later), so that each reads what the other
wrote; experts have DeepSpeed's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dlemu.checkpoints.grid import Grid, Place
from dlemu.config.model import DATATYPE_BYTES, Datatype, Model

Role = Literal["model", "optimizer"]
OPTIMIZER_COPIES = 3
"""Of each parameter an optimizer like Adam keeps the value itself, the mean and the variance of its gradient."""
OPTIMIZER_EXTRA = 5
"""Times the hidden size: the parameters that DLIO adds to each of these, one by one."""


@dataclass(frozen=True)
class Part:
    """Which piece of a tensor of the whole model something is: all pieces are as large, one after another."""

    name: str
    """Of the tensor, the same on all ranks."""
    piece: int = 0
    pieces: int = 1
    copy: int = 0
    """Not 0 where another rank writes the same piece as copy 0: vectors are on each tensor-parallel rank."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file; dots in its name separate the dictionaries in which it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: Datatype
    part: Part = Part("")

    @property
    def bytes(self) -> int:
        """Return its bytes."""
        return math.prod(self.shape) * DATATYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint."""

    path: str
    """Below the checkpoint's own folder, with `.pt` at its end."""
    tensors: tuple[Tensor, ...]
    role: Role

    @property
    def bytes(self) -> int:
        """Return the bytes of its tensors; a format adds its own."""
        return sum(tensor.bytes for tensor in self.tensors)


def shards_of_rank(model: Model, grid: Grid, rank: int) -> tuple[Shard, ...]:
    """Return the files that a rank writes, in the order in which it writes them; none where it writes nothing.

    Args:
        model: What is saved.
        grid: How the job's ranks share it.
        rank: One of the job's ranks, 0 to `grid.ranks` - 1.
    """
    place = grid.place(rank)
    if grid.zero_stage == 0 and rank >= grid.model_ranks and not grid.all_ranks:
        return tuple(_expert_shards(model, grid, place))
    shards = [*_sized_shard(model, grid, rank)]
    if model.has_layers:
        shards += [*_layer_shards(model, grid, place), *_expert_shards(model, grid, place)]
    optimizer = _optimizer_tensors(model, grid, rank)
    if optimizer:
        shards.append(Shard(f"{_zero_name(place)}_optim_states.pt", optimizer, "optimizer"))
    return tuple(shards)


def parameters(model: Model) -> int:
    """Return the model's number of parameters by its numbers (DLIO's `get_num_parameters`); 0 without layers.

    Both embeddings are counted, and of each layer: norm, attention's input and output, norm, and three matrices of a
    gated feed-forward network; with experts their router, and the three matrices of every expert.
    """
    return _dense_parameters(model) + _expert_parameters(model)


def _dense_parameters(model: Model) -> int:
    if not model.has_layers or model.layer_parameters:
        return 0
    last, routed = model.num_layers, _expert_layers(model)
    # Layers without experts come first; the embedding, the head and its norm are there once.
    counted = ((0, 1), (1, last - routed), (last, routed), (last + 1, 1), (last + 2, 1))
    return sum(count * sum(map(math.prod, _layer_shapes(model, layer))) for layer, count in counted)


def _expert_parameters(model: Model) -> int:
    if not model.has_layers or model.layer_parameters:
        return 0
    each = sum(map(math.prod, _network(model, _expert_width(model))))
    return _expert_layers(model) * model.transformer.num_experts * each


def _sized_shard(model: Model, grid: Grid, rank: int) -> Iterator[Shard]:
    if model.type != "transformer" and model.model_size_bytes > 0:
        part = Part("model", rank, grid.ranks)
        yield Shard(f"model_states-{rank}.pt", (Tensor("a", (model.model_size_bytes,), "int8", part),), "model")


def _layer_shards(model: Model, grid: Grid, place: Place) -> Iterator[Shard]:
    """Yield the layers' files: one of all where they are cut over the copies or one stage has all, else one a layer."""
    layers = _layers_of_stage(model, grid.pipeline, place.pipeline)
    if grid.zero_stage in (1, 2):
        if place.data > 0:
            return
        if grid.pipeline > 1:
            for layer in layers:
                yield Shard(
                    f"layer_{layer}-model_{place.model}_model_states.pt",
                    _layer_tensors(model, grid, place, layer),
                    "model",
                )
            return
        path = f"model_{place.model}_model_states.pt"
    else:
        path = f"{_zero_name(place)}_model_states.pt"
    whole = [tensor for layer in layers for tensor in _layer_tensors(model, grid, place, layer, f"{layer}.")]
    yield Shard(path, tuple(whole), "model")


def _layers_of_stage(model: Model, stages: int, stage: int) -> range:
    """Return the layers of a pipeline stage: 0 is the embedding, `num_layers` + 1 and + 2 are the head and its norm.

    The first stages have one layer more where they can't all have as many; the first has the embedding, the last the
    head. Models given by `layer_parameters` have neither.
    """
    each, more = divmod(model.num_layers, stages)
    start = stage * each + min(stage, more) + 1
    end = start + each + (1 if stage < more else 0)
    if not model.layer_parameters:
        start = 0 if stage == 0 else start
        end = model.num_layers + 3 if stage == stages - 1 else end
    return range(start, end)


def _layer_tensors(model: Model, grid: Grid, place: Place, layer: int, prefix: str = "") -> tuple[Tensor, ...]:
    if model.layer_parameters:
        return _cut([(size, 1) for size in model.layer_parameters], "int8", grid, place, layer, prefix)
    shapes = _layer_shapes(model, layer)
    if grid.zero_stage == 3 and _has_experts(model, layer):  # cut over all copies as the rest of the layer is
        shapes = [*shapes, *_network(model, _expert_width(model)) * model.transformer.num_experts]
    return _cut(shapes, model.model_datatype, grid, place, layer, prefix)


def _cut(
    shapes: list[tuple[int, ...]], dtype: Datatype, grid: Grid, place: Place, layer: int | str, prefix: str = ""
) -> tuple[Tensor, ...]:
    """Return the rank's piece of each tensor; those of which nothing is left are left out.

    A vector (a norm) is on every rank of the tensor-parallel group; each division rounds down, as DLIO's do.
    """
    copies, copy = (grid.data, place.data) if grid.zero_stage == 3 else (1, 0)
    tensors = []
    for index, shape in enumerate(shapes):
        over = grid.tensor if len(shape) > 1 else 1
        size = math.prod(shape) // over // copies
        piece, same = (place.tensor, 0) if over > 1 else (0, place.tensor)
        part = Part(f"model.{layer}.{index}", piece * copies + copy, over * copies, same)
        if size > 0:
            tensors.append(Tensor(f"{prefix}{index}", (size,), dtype, part))
    return tuple(tensors)


def _layer_shapes(model: Model, layer: int) -> list[tuple[int, ...]]:
    """Return the shape of each vector and matrix of a layer, before it is cut; its experts are left out."""
    shape, hidden = model.transformer, model.transformer.hidden_size
    if layer in (0, model.num_layers + 1):
        return [(hidden, shape.vocab_size)]
    if layer == model.num_layers + 2:
        return [(hidden,)]
    head = shape.head_dim or hidden // shape.num_attention_heads
    queries = shape.head_dim * shape.num_attention_heads or hidden
    attention = [(hidden,), (hidden, queries + 2 * head * shape.num_kv_heads), (queries, hidden), (hidden,)]
    if not _has_experts(model, layer):
        return [*attention, *_network(model, shape.ffn_hidden_size)]
    shared = shape.num_shared_experts * _expert_width(model)
    return [*attention, (hidden, shape.num_experts), *(_network(model, shared) if shared else ())]


def _network(model: Model, width: int) -> list[tuple[int, ...]]:
    """Return the two matrices of a gated feed-forward network: gate and up are one."""
    hidden = model.transformer.hidden_size
    return [(hidden, 2 * width), (width, hidden)]


def _has_experts(model: Model, layer: int) -> bool:
    shape = model.transformer
    return shape.num_experts > 0 and shape.num_dense_layers < layer <= model.num_layers


def _expert_layers(model: Model) -> int:
    return max(0, model.num_layers - model.transformer.num_dense_layers) if model.transformer.num_experts else 0


def _expert_width(model: Model) -> int:
    return model.transformer.moe_ffn_hidden_size or model.transformer.ffn_hidden_size


def _expert_shards(model: Model, grid: Grid, place: Place) -> Iterator[Shard]:
    """Yield one file for each expert of each layer that the rank has: of several ranks that have it, the first."""
    if not model.has_layers or grid.zero_stage == 3 or place.data >= grid.expert:
        return
    each = model.transformer.num_experts // grid.expert
    for layer in _layers_of_stage(model, grid.pipeline, place.pipeline):
        if not _has_experts(model, layer):
            continue
        network = _network(model, _expert_width(model))
        for expert in range(place.data * each, (place.data + 1) * each):
            tensors = _cut(network, model.model_datatype, grid, place, f"{layer}.expert.{expert}")
            yield Shard(f"layer_{layer}_expert_{expert}_mp_rank_{place.model:02d}_model_states.pt", tensors, "model")


def _optimizer_tensors(model: Model, grid: Grid, rank: int) -> tuple[Tensor, ...]:
    ranks = grid.ranks if grid.zero_stage > 0 else grid.model_ranks
    if model.optimization_groups:
        groups = [(index, size) for index, size in enumerate(model.optimization_groups) if size > 0]
        named = [(f"{index}.{half}", size) for index, size in groups for half in "ab"]
        named.append(("combined", sum(size for _, size in groups)))
        dtype: Datatype = "int8"
    elif model.has_layers:
        parts = [_dense_parameters(model) // ranks, _expert_parameters(model) // ranks]
        copy = [size for size in parts if size > 0]
        copy += [OPTIMIZER_EXTRA * model.transformer.hidden_size] if copy else []
        named = [(str(index), size) for index, size in enumerate(copy * OPTIMIZER_COPIES)]
        dtype = model.optimizer_datatype
    else:
        named, dtype = [], "int8"
    return tuple(Tensor(name, (size,), dtype, Part(f"optimizer.{name}", rank, ranks)) for name, size in named)


def _zero_name(place: Place) -> str:
    return f"zero_pp_rank_{place.data}_mp_rank_{place.model}"
