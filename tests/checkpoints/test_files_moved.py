"""A rank's files are written whole or not at all, read as they were written, and whose bytes are wrong is said."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import UserError
from datagen.storage import memory, posix
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from dlemu.checkpoints.file_content import FileContent, files_of
from dlemu.checkpoints.movers import RING_BYTES, make_buffers
from dlemu.checkpoints.read_files import CheckpointReader, read_pattern
from dlemu.checkpoints.shards import FileLayout, Tensor
from dlemu.checkpoints.stored import folder_of
from dlemu.checkpoints.write_files import CheckpointWriter, PieceRing
from dlemu.config.schema import Checkpoint, Datatype

HEAD, TAIL = b"head of the file", b"end"
DEFAULT = Checkpoint()
SIZES = (100_003, 3 * 65_536, 5)


def layout(name: str, size_bytes: int) -> FileLayout:
    tensor = Tensor("t", (size_bytes,), "int8")
    literals = ((0, HEAD), (len(HEAD) + size_bytes, TAIL))
    return FileLayout(name, len(HEAD) + size_bytes + len(TAIL), literals, ((len(HEAD), tensor),))


def files(folder: str, settings: Checkpoint = DEFAULT, seed: int = 5, checkpoint: int = 1) -> list[FileContent]:
    layouts = [layout(f"{number}.pt", size) for number, size in enumerate(SIZES)]
    return files_of(folder, layouts, settings, seed, checkpoint=checkpoint, rank=2)


def write(
    storage: StorageBase, wanted: list[FileContent], threads: int = 1, piece: int = 16_384
) -> list[dict[str, int]]:
    storage.make_folder(os.path.dirname(wanted[0].path))
    buffers = make_buffers(threads, piece, max(file.size_bytes for file in wanted))
    writer = CheckpointWriter(storage, wanted, buffers, Checkpoint(writers=threads))
    moved: list[dict[str, int]] = []
    writer.write(lambda _, file: moved.append(file))
    return moved


def read(storage: StorageBase, wanted: list[FileContent], settings: Checkpoint) -> list[dict[str, int]]:
    moved: list[dict[str, int]] = []
    with contextlib.closing(CheckpointReader(storage, read_pattern(settings), verify=settings.verify)) as reader:
        reader.read(wanted, lambda _, file: moved.append(file), content_known=True)
    return moved


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_written_is_read_back_in_every_manner(threads: int, direct: bool, tmp_path: Path) -> None:
    storage = open_storage(StorageSpec(direct=direct, direct_writes=direct))
    wanted = files(str(tmp_path / "c"))
    written = write(storage, wanted, threads)
    assert [file["bytes"] for file in written] == [file.size_bytes for file in wanted]
    for file in wanted:
        data = Path(file.path).read_bytes()
        assert data.startswith(HEAD)
        assert data.endswith(TAIL)
    for manner in ("fast", "mlperf_v3", *(() if direct else ("torch_load",))):
        settings = Checkpoint(verify=True, read_as=manner, readers=2, transfer_size=8192)
        moved = read(storage, wanted, settings)
        tails = sum(4096 if file.size_bytes > 4096 else file.size_bytes for file in wanted)
        literals = len(wanted) * (len(HEAD) + len(TAIL))
        extra = tails - literals if manner == "torch_load" else 0
        assert sum(file["bytes"] for file in moved) == sum(file.size_bytes for file in wanted) + extra


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "is missing: the checkpoint is incomplete"),
        ("truncated", r"is truncated: it has 100 bytes, wanted \d+"),
        ("long", "is too long: it is of another model"),
        ("another file", "is not the file that was written: it holds bytes of another file"),
        ("another run", "is not the file that was written: it holds bytes of another run"),
        ("zeros", "is not the file that was written: the bytes there were not written by dlemu"),
    ],
)
def test_a_file_that_is_not_as_written_is_named_however_it_is_read(damage: str, message: str, tmp_path: Path) -> None:
    storage, wanted = posix.Storage(), files(str(tmp_path / "c"))
    write(storage, wanted)
    path, size = Path(wanted[1].path), wanted[1].size_bytes
    match damage:
        case "missing":
            path.unlink()
        case "truncated" | "long":
            os.truncate(path, 100 if damage == "truncated" else size + 1)
        case "another run":
            write(storage, files(str(tmp_path / "c"), seed=6)[1:2])
        case _:
            other = np.zeros(size, np.uint8)
            if damage == "another file":
                replace(wanted[1], number=29).fill(other, 0)
            path.write_bytes(other.tobytes())
    for manner in ("fast", "torch_load", "mlperf_v3"):
        with pytest.raises(UserError, match=rf"1\.pt {message}"):
            read(storage, wanted, Checkpoint(read_as=manner))


def test_a_single_changed_byte_is_found_where_every_byte_is_compared(tmp_path: Path) -> None:
    storage = posix.Storage()
    wanted = files(str(tmp_path / "c"))
    write(storage, wanted)
    with open(wanted[1].path, "r+b") as file:
        file.seek(70_000)
        file.write(b"\x00\x01")
    read(storage, wanted, Checkpoint())
    with pytest.raises(UserError, match=r"byte 7000\d is not what was written"):
        read(storage, wanted, Checkpoint(verify=True))


def test_two_checkpoints_share_no_bytes() -> None:
    storage = memory.Storage()
    write(storage, files("a"))
    write(storage, files("b", checkpoint=2))
    assert storage.files["a/1.pt"] != storage.files["b/1.pt"]


def test_pieces_of_a_file_are_pieces_of_the_whole() -> None:
    """Wherever they are cut: in the format's own bytes, too."""
    content = files("a")[2]
    whole = np.empty(content.layout.size_bytes, np.uint8)
    content.fill(whole, 0)
    assert whole.tobytes().startswith(HEAD)
    assert whole.tobytes().endswith(TAIL)
    for begin in range(len(whole)):
        for end in range(begin + 1, len(whole) + 1):
            piece = np.empty(end - begin, np.uint8)
            content.fill(piece, begin)
            assert piece.tobytes() == whole[begin:end].tobytes(), (begin, end)


@pytest.mark.parametrize(("dtype", "kind"), [("fp32", np.float32), ("fp16", np.float16)])
def test_tensors_that_are_not_drawn_are_ones_of_their_own_kind(dtype: Datatype, kind: type[np.floating[Any]]) -> None:
    tensor = Tensor("t", (5000,), dtype)
    whole = FileLayout("x.pt", tensor.bytes, (), ((0, tensor),))
    data = np.empty(tensor.bytes, np.uint8)
    (content,) = files_of("", [whole], Checkpoint(randomize_tensor=False), 5, checkpoint=1, rank=0)
    content.fill(data, 0)
    assert (data.view(kind) == 1).all()


def test_the_times_of_a_file_follow_each_other(tmp_path: Path) -> None:
    storage = posix.Storage()
    wanted = files(str(tmp_path / "c"))
    before, cpu_before = time.monotonic_ns(), time.process_time_ns()
    everything = (*write(storage, wanted), *read(storage, wanted, Checkpoint()))
    assert 0 < sum(moved["cpu_ns"] for moved in everything) <= time.process_time_ns() - cpu_before
    for moved in everything:
        stamps = [before, *(moved[name] for name in ("started_ns", "moved_ns", "synced_ns", "ended_ns"))]
        assert stamps == sorted(stamps)
    assert [moved["bytes"] for moved in everything] == 2 * [file.size_bytes for file in wanted]
    assert folder_of("saved/", 3) == folder_of("saved", 3) == "saved/global_epoch1_step3"
    assert folder_of("/mnt/saved/", 3) == "/mnt/saved/global_epoch1_step3"


def test_the_ring_takes_no_more_memory_for_a_larger_model() -> None:
    for threads in (1, 4, 16):
        buffers = make_buffers(threads, 8 << 20, 1 << 40)
        assert threads < len(buffers)
        assert sum(map(len, buffers)) <= max(RING_BYTES, (threads + 1) * (8 << 20))


def test_a_ring_that_nobody_empties_ends_when_it_is_closed() -> None:
    buffers = make_buffers(1, 4096, 1 << 40)
    ring = PieceRing([(1 << 40, lambda buffer, offset: None)], buffers, 1)
    ring.wait_full()
    ring.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoint-content"]
    taken = [offset for _, offset in ring.pieces({"starved_ns": 0})]
    assert taken == list(range(0, 4096 * len(buffers), 4096)), "what was filled, and then nothing"
