"""What every format of a checkpoint promises, and that the libraries of the field read what is laid out."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from datagen.registry import find, names
from dlemu.checkpoints.checkpoint_plan import FORMATS, CheckpointFormat, CheckpointPlan, plan_checkpoint
from dlemu.checkpoints.shards import FileLayout, Shard, Tensor
from dlemu.config.schema import Checkpoint
from tests.checkpoints import byte_oracle
from tests.checkpoints.models import SHAPES

EVERY = names(FORMATS)
KNOWN = json.loads(byte_oracle.ORACLE.read_text())


def planned(form: str, shape: str, ranks: int = 4) -> CheckpointPlan:
    return plan_checkpoint(SHAPES[shape], Checkpoint(format=form), ranks)


def content(tensor: Tensor) -> bytes:
    """Return bytes that tell the tensor's pieces apart: numbers that are the same in every type."""
    return bytes([tensor.part.piece % 100]) * tensor.bytes


def put_together(file: FileLayout) -> bytes:
    parts = [*file.literals, *((offset, content(tensor)) for offset, tensor in file.tensors)]
    whole = b""
    for offset, data in sorted(parts, key=lambda part: (part[0], len(part[1]))):
        assert offset == len(whole), file.path
        whole += data
    assert len(whole) == file.size_bytes
    return whole


def write(plan: CheckpointPlan, folder: Path) -> None:
    for rank in plan.ranks:
        for file in plan.files(rank):
            (folder / file.path).write_bytes(put_together(file))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", EVERY)
def test_every_byte_of_every_file_is_said_once(form: str, shape: str) -> None:
    plan = planned(form, shape)
    made: CheckpointFormat = find(FORMATS, form, "Format")()
    paths = []
    for rank in plan.ranks:
        files = made.files(plan, rank)
        alone = find(FORMATS, form, "Format")().files(plan, rank)
        assert files == plan.files(rank) == made.files(plan, rank) == alone, "pure"
        for file in files:
            put_together(file)
            paths.append(file.path)
            assert not file.path.startswith(("/", "..")), "below the checkpoint's folder"
    assert len(set(paths)) == len(paths)
    wanted = [tensor for rank in plan.ranks for shard in plan.shards(rank) for tensor in shard.tensors]
    found = [tensor for rank in plan.ranks for file in plan.files(rank) for _, tensor in file.tensors]
    assert set(found) <= set(wanted)
    assert {tensor for tensor in wanted if tensor.part.duplicate == 0} <= set(found)


@pytest.mark.parametrize("case", byte_oracle.cases(), ids=", ".join)
def test_bytes_and_read_calls_are_as_they_were(case: tuple[str, str]) -> None:
    assert byte_oracle.record(*case) == KNOWN[", ".join(case)]


def test_nothing_is_left_in_the_oracle_that_is_no_longer_made() -> None:
    assert KNOWN.keys() == set(map(", ".join, byte_oracle.cases()))


TENSORS = (
    Tensor("0.0", (33,), "fp16"),
    Tensor("1.0", (1000,), "fp32"),
    Tensor("1.1", (65537,), "int8"),
    Tensor("12.0", (7, 3), "fp64"),
    Tensor("12.1", (1,), "uint8"),
    Tensor("12.2", (64,), "bf16"),
)


def laid_out(form: str, tensors: tuple[Tensor, ...]) -> bytes:
    made = find(FORMATS, form, "Format")()
    assert isinstance(made, CheckpointFormat)
    return put_together(made.layout(Shard("part.pt", tensors, "model")))


def torch_type(dtype: str) -> Any:
    torch = pytest.importorskip("torch")
    kinds = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
    return getattr(torch, kinds.get(dtype, dtype))


def saved_by_torch(tensors: tuple[Tensor, ...]) -> bytes:
    """Return what torch.save makes of the same tensors, with keys made anew as DLIO's are."""
    torch = pytest.importorskip("torch")
    state: dict[str, Any] = {}
    for tensor in tensors:
        *above, last = tensor.name.split(".")
        inner = state
        for key in above:
            inner = inner.setdefault(str(int(key)), {})
        values = torch.frombuffer(bytearray(content(tensor)), dtype=torch_type(tensor.dtype)).reshape(tensor.shape)
        inner[str(int(last))] = values.clone()
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


FLAT = tuple(Tensor(str(number), (100 + number,), "fp32") for number in range(6))
LAYERS = tuple(Tensor(f"{layer}.{index}", (50 + index,), "fp16") for layer in range(60) for index in range(6))


@pytest.mark.parametrize("tensors", [TENSORS, FLAT, FLAT[:1], LAYERS], ids=["types", "six", "one", "layers"])
def test_torch_saves_the_same_file_but_for_checksums(tensors: tuple[Tensor, ...]) -> None:
    ours, theirs = laid_out("torch", tensors), saved_by_torch(tensors)
    assert len(ours) == len(theirs)
    mine, real = (zipfile.ZipFile(io.BytesIO(data)) for data in (ours, theirs))
    assert mine.namelist() == real.namelist()
    assert [entry.header_offset for entry in mine.infolist()] == [entry.header_offset for entry in real.infolist()]
    assert mine.read("archive/data.pkl") == real.read("archive/data.pkl")
    for name in ("archive/version", "archive/byteorder", "archive/.storage_alignment"):
        assert mine.read(name) == real.read(name)
    first = real.getinfo("archive/data/0").header_offset
    assert ours[:first] == theirs[:first]


def test_torch_loads_it() -> None:
    torch = pytest.importorskip("torch")
    state = torch.load(io.BytesIO(laid_out("torch", TENSORS)))
    assert list(state) == ["0", "1", "12"]
    for tensor in TENSORS:
        above, last = tensor.name.split(".")
        loaded = state[above][last]
        assert (tuple(loaded.shape), loaded.dtype) == (tensor.shape, torch_type(tensor.dtype))
        assert loaded.view(torch.uint8).numpy().tobytes() == content(tensor)


def test_a_file_is_as_large_as_dlios() -> None:
    """Bytes beside the tensor's own in a file of DLIO 2.0."""
    size_bytes = 525336576 // 16
    assert len(laid_out("torch", (Tensor("0", (size_bytes // 2,), "fp16"),))) - size_bytes == 1577


def test_records_beyond_4_gib_have_zip64_fields(tmp_path: Path) -> None:
    """Compared by hand with torch.save of such tensors: equal but for checksums."""
    sizes = (1000, (1 << 32) + 12345, 70, (1 << 32) - 1, (1 << 32) - 2)
    tensors = tuple(Tensor(str(number), (size,), "int8") for number, size in enumerate(sizes))
    file = find(FORMATS, "torch", "Format")().layout(Shard("x.pt", tensors, "model"))
    assert file.size_bytes == 12884917953, "PyTorch 2.13's file"
    assert all(offset % 64 == 0 for offset, _ in file.tensors)
    with open(tmp_path / "sparse", "wb") as out:  # zeros in place of the tensors take no space
        for offset, data in file.literals:
            out.seek(offset)
            out.write(data)
    directory = zipfile.ZipFile(tmp_path / "sparse").infolist()
    assert [entry.file_size for entry in directory if "/data/" in entry.filename] == list(sizes)
    for entry, (offset, _) in zip(directory[4:9], file.tensors, strict=True):
        assert entry.header_offset < offset < entry.header_offset + 200


def test_safetensors_reads_it() -> None:
    library = pytest.importorskip("safetensors.numpy")
    plain = tuple(tensor for tensor in TENSORS if tensor.dtype != "bf16")  # numpy has no such type
    loaded = library.load(laid_out("safetensors", plain))
    for tensor in plain:
        assert loaded[tensor.name].shape == tensor.shape
        assert loaded[tensor.name].tobytes() == content(tensor)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", ["zero 3", "a file a layer", "experts"])
def test_torchs_distributed_checkpoint_loads_the_whole_model_from_all_ranks_files(shape: str, tmp_path: Path) -> None:
    """One process reads what four wrote: every piece of every tensor is where the metadata says."""
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    plan = planned("distcp", shape)
    write(plan, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".metadata", *(f"__{rank}_0.distcp" for rank in range(4))}
    known = dcp.FileSystemReader(str(tmp_path)).read_metadata().state_dict_metadata
    wanted: dict[str, Tensor] = {}
    for rank in plan.ranks:
        for shard in plan.shards(rank):
            wanted |= {tensor.part.name: tensor for tensor in shard.tensors}
    assert set(known) == set(wanted)
    state = {name: torch.zeros(entry.size, dtype=entry.properties.dtype) for name, entry in known.items()}
    dcp.load(state, checkpoint_id=str(tmp_path))
    for name, tensor in wanted.items():
        pieces = [bytes([piece % 100]) * tensor.bytes for piece in range(tensor.part.pieces)]
        assert state[name].view(torch.uint8).numpy().tobytes() == b"".join(pieces), name
