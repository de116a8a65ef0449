"""How a checkpoint is sharded: which files each rank writes, and which tensors each file holds. Pure arithmetic.

Names, counts and sizes are those of DLIO (`BaseCheckpointing` of DLIO 2.0 and later), so that dlemu and DLIO can read
each other's checkpoints; experts' files are named as in DeepSpeed. With two pipeline stages and ZeRO 1, rank 0 writes
a file per layer of its stage, `layer_0-model_0_model_states.pt` and so on, then its optimizer state,
`zero_pp_rank_0_mp_rank_0_optim_states.pt`. Without ZeRO it has one file for its layers, `zero_..._model_states.pt`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from dlemu.checkpoints.grid import Grid, GridIndex
from dlemu.config.schema import DATATYPE_BYTES, Datatype, Model

Role = Literal["model", "optimizer"]
OPTIMIZER_VALUES = 3  # per parameter, as in Adam: the weight itself, its gradient's mean and variance
OPTIMIZER_EXTRA = 5  # for each of these values DLIO adds a tensor of 5 x the hidden size


@dataclass(frozen=True)
class Part:
    """A rank's piece of a whole tensor of the model, which is cut into `pieces` consecutive pieces of equal size."""

    name: str  # of the whole tensor, the same on all ranks
    piece: int = 0  # index of the piece
    pieces: int = 1
    duplicate: int = 0
    """0 on the first rank with this piece, 1 on the second: all tensor-parallel ranks have each vector (a norm)."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file; dots in its name separate the keys of nested dictionaries."""

    name: str
    shape: tuple[int, ...]
    dtype: Datatype
    part: Part = Part("")

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DATATYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Shard:
    """The content of one file of a checkpoint, whatever its format."""

    path: str  # relative to the checkpoint's folder; ends in `.pt`
    tensors: tuple[Tensor, ...]
    role: Role

    @property
    def bytes(self) -> int:
        """Bytes of the tensors; a format adds its headers."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True)
class FileLayout:
    """One file of a checkpoint: literals and tensors cover it without gaps."""

    path: str  # relative to the checkpoint's folder
    size_bytes: int
    literals: tuple[tuple[int, bytes], ...]
    """(offset, bytes) of headers, names and padding, sorted by offset."""
    tensors: tuple[tuple[int, Tensor], ...]
    """(offset, tensor), sorted by offset; `FileContent` generates the content."""

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.bytes for _, tensor in self.tensors)


def file_layout(path: str, contents: Iterable[bytes | Tensor]) -> FileLayout:
    """Return the layout of a file of these literals and tensors, back to back; adjacent literals are merged."""
    literals: list[tuple[int, bytes]] = []
    tensors: list[tuple[int, Tensor]] = []
    end = 0  # of the last tensor
    literal = b""  # everything after it
    for content in contents:
        if isinstance(content, bytes):
            literal += content
            continue
        if literal:
            literals.append((end, literal))
        start = end + len(literal)
        tensors.append((start, content))
        end, literal = start + content.bytes, b""
    if literal:
        literals.append((end, literal))
    return FileLayout(path, end + len(literal), tuple(literals), tuple(tensors))


def shards_of_rank(model: Model, grid: Grid, rank: int) -> tuple[Shard, ...]:
    """Return the files that a rank of the job (0 to `grid.ranks` - 1) writes, in order; it may write none."""
    index = grid.index_of(rank)
    if grid.zero_stage == 0 and rank >= grid.model_ranks and not grid.all_ranks:
        return tuple(_expert_shards(model, grid, index))  # without ZeRO, the model's first replica saves the rest
    shards = list[Shard]()
    if model.type != "transformer" and model.model_size_bytes > 0:
        tensor = Tensor("a", (model.model_size_bytes,), "int8", Part("model", rank, grid.ranks))  # as in DLIO
        shards.append(Shard(f"model_states-{rank}.pt", (tensor,), "model"))
    if model.has_layers:
        shards += [*_layer_shards(model, grid, index), *_expert_shards(model, grid, index)]
    optimizer = _optimizer_tensors(model, grid, rank)
    if optimizer:
        shards.append(Shard(f"{_zero_name(index)}_optim_states.pt", optimizer, "optimizer"))
    return tuple(shards)


def parameters(model: Model) -> int:
    """Return the model's number of parameters from its dimensions (DLIO's `get_num_parameters`); 0 without layers.

    Counts the embedding, the head and its norm; for each layer two norms, the attention's input and output matrices and
    the three matrices of a gated feed-forward network; with experts, the router and each expert's three matrices.
    """
    return sum(_parameters(model))


def _parameters(model: Model) -> tuple[int, int]:
    """Return the number of parameters outside of the experts, and in all experts."""
    if not model.has_layers or model.layer_parameters:
        return 0, 0
    last, experts = model.num_layers, model.transformer.num_experts
    expert_layers = max(0, last - model.transformer.num_dense_layers) if experts else 0
    # Layers with the same shapes, as (one of them, count): the embedding, the dense layers, which come first, the
    # expert layers, the head and its norm.
    alike = ((0, 1), (1, last - expert_layers), (last, expert_layers), (last + 1, 1), (last + 2, 1))
    dense = sum(count * sum(map(math.prod, _layer_shapes(model, layer))) for layer, count in alike)
    return dense, expert_layers * experts * sum(map(math.prod, _expert_shapes(model)))


def _layer_shards(model: Model, grid: Grid, index: GridIndex) -> Iterator[Shard]:
    """Yield the files of this rank's layers: one per layer with ZeRO 1 or 2 and pipeline stages, else one for all."""
    layers = _layers_of_stage(model, grid.pipeline, index.pipeline)
    if grid.zero_stage in (1, 2):
        if index.data > 0:
            return
        if grid.pipeline > 1:
            for layer in layers:
                path = f"layer_{layer}-model_{index.model}_model_states.pt"
                yield Shard(path, _layer_tensors(model, grid, index, layer), "model")
            return
        path = f"model_{index.model}_model_states.pt"
    else:
        path = f"{_zero_name(index)}_model_states.pt"
    tensors = [tensor for layer in layers for tensor in _layer_tensors(model, grid, index, layer, f"{layer}.")]
    yield Shard(path, tuple(tensors), "model")


def _layers_of_stage(model: Model, stages: int, stage: int) -> range:
    """Return a stage's layers, numbered as in DLIO: 0 is the embedding, `num_layers` + 1 the head, + 2 the head's norm.

    If the layers do not divide evenly, the first stages have one more. The embedding is in the first stage, the head in
    the last; models given by `layer_parameters` have neither.
    """
    layers_per_stage, larger_stages = divmod(model.num_layers, stages)
    start = stage * layers_per_stage + min(stage, larger_stages) + 1
    end = start + layers_per_stage + (1 if stage < larger_stages else 0)
    if not model.layer_parameters:
        start = 0 if stage == 0 else start
        end = model.num_layers + 3 if stage == stages - 1 else end
    return range(start, end)


def _layer_tensors(model: Model, grid: Grid, index: GridIndex, layer: int, prefix: str = "") -> tuple[Tensor, ...]:
    if model.layer_parameters:
        return _rank_tensors([(size, 1) for size in model.layer_parameters], "int8", grid, index, layer, prefix)
    shapes = _layer_shapes(model, layer)
    if grid.zero_stage == 3 and _has_experts(model, layer):  # ZeRO 3 shards experts like the rest of the layer
        shapes = [*shapes, *_expert_shapes(model) * model.transformer.num_experts]
    return _rank_tensors(shapes, model.model_datatype, grid, index, layer, prefix)


def _rank_tensors(
    shapes: list[tuple[int, ...]], dtype: Datatype, grid: Grid, index: GridIndex, layer: int | str, prefix: str = ""
) -> tuple[Tensor, ...]:
    """Return the rank's piece of each tensor of the given shapes, without pieces of size 0.

    Each tensor-parallel rank has a slice of each matrix and all of each vector (a norm). ZeRO 3 also shards each slice
    over the data-parallel ranks. Divisions round down, as in DLIO.
    """
    shards, shard_index = (grid.data, index.data) if grid.zero_stage == 3 else (1, 0)
    tensors = []
    for number, shape in enumerate(shapes):
        slices, slice_index, duplicate = 1, 0, index.tensor  # a vector
        if len(shape) > 1 and grid.tensor > 1:
            slices, slice_index, duplicate = grid.tensor, index.tensor, 0
        size = math.prod(shape) // slices // shards
        if size > 0:
            part = Part(f"model.{layer}.{number}", slice_index * shards + shard_index, slices * shards, duplicate)
            tensors.append(Tensor(f"{prefix}{number}", (size,), dtype, part))
    return tuple(tensors)


def _layer_shapes(model: Model, layer: int) -> list[tuple[int, ...]]:
    """Return the shapes of a layer's whole vectors and matrices, without its experts."""
    sizes, hidden = model.transformer, model.transformer.hidden_size
    if layer in (0, model.num_layers + 1):  # the embedding, and the head
        return [(hidden, sizes.vocab_size)]
    if layer == model.num_layers + 2:  # the head's norm
        return [(hidden,)]
    head = sizes.head_dim or hidden // sizes.num_attention_heads
    queries = sizes.head_dim * sizes.num_attention_heads or hidden
    attention = [(hidden,), (hidden, queries + 2 * head * sizes.num_kv_heads), (queries, hidden), (hidden,)]
    if not _has_experts(model, layer):
        return [*attention, *_feed_forward_shapes(hidden, sizes.ffn_hidden_size)]
    shared_width = sizes.num_shared_experts * _expert_width(model)
    shared = _feed_forward_shapes(hidden, shared_width) if shared_width else []
    return [*attention, (hidden, sizes.num_experts), *shared]


def _feed_forward_shapes(hidden: int, width: int) -> list[tuple[int, ...]]:
    """Return the shapes of a gated feed-forward network: the gate and up matrices as one, and the down matrix."""
    return [(hidden, 2 * width), (width, hidden)]


def _expert_shapes(model: Model) -> list[tuple[int, ...]]:
    return _feed_forward_shapes(model.transformer.hidden_size, _expert_width(model))


def _has_experts(model: Model, layer: int) -> bool:
    sizes = model.transformer
    return sizes.num_experts > 0 and sizes.num_dense_layers < layer <= model.num_layers


def _expert_width(model: Model) -> int:
    return model.transformer.moe_ffn_hidden_size or model.transformer.ffn_hidden_size


def _expert_shards(model: Model, grid: Grid, index: GridIndex) -> Iterator[Shard]:
    """Yield a file per layer and expert that this rank saves: the first replica of each expert is saved."""
    if not model.has_layers or grid.zero_stage == 3 or index.data >= grid.expert:
        return
    shapes, experts_per_rank = _expert_shapes(model), model.transformer.num_experts // grid.expert
    for layer in _layers_of_stage(model, grid.pipeline, index.pipeline):
        if not _has_experts(model, layer):
            continue
        for expert in range(index.data * experts_per_rank, (index.data + 1) * experts_per_rank):
            tensors = _rank_tensors(shapes, model.model_datatype, grid, index, f"{layer}.expert.{expert}")
            yield Shard(f"layer_{layer}_expert_{expert}_mp_rank_{index.model:02d}_model_states.pt", tensors, "model")


def _optimizer_tensors(model: Model, grid: Grid, rank: int) -> tuple[Tensor, ...]:
    """Return the rank's share of the optimizer state, divided among all ranks (ZeRO) or the ranks of one replica."""
    ranks = grid.ranks if grid.zero_stage > 0 else grid.model_ranks
    if model.optimization_groups:
        groups = [(number, size) for number, size in enumerate(model.optimization_groups) if size > 0]
        sizes = {f"{number}.{half}": size for number, size in groups for half in "ab"}  # DLIO's keys: a, b, combined
        sizes["combined"] = sum(size for _, size in groups)
        dtype: Datatype = "int8"  # as in DLIO, where a group's size is in bytes
    elif model.has_layers:
        value_sizes = [size // ranks for size in _parameters(model) if size >= ranks]  # of one value per parameter
        if value_sizes:
            value_sizes.append(OPTIMIZER_EXTRA * model.transformer.hidden_size)
        sizes = {str(number): size for number, size in enumerate(value_sizes * OPTIMIZER_VALUES)}
        dtype = model.optimizer_datatype
    else:
        return ()
    return tuple(Tensor(name, (size,), dtype, Part(f"optimizer.{name}", rank, ranks)) for name, size in sizes.items())


def _zero_name(index: GridIndex) -> str:
    return f"zero_pp_rank_{index.data}_mp_rank_{index.model}"
