"""What lies in a checkpoint folder: whose it is, what it says of itself, and that nothing of anybody else's goes."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from datagen.errors import SpaceError, UserError
from datagen.storage import posix
from dlemu.checkpoints.io_rows import IO_COLUMNS, IO_DTYPE
from dlemu.checkpoints.stored import (
    BLOCKS,
    NOTE,
    StoredNote,
    block_name,
    claim_blocks,
    files_in,
    read_note,
    remove_checkpoint,
    stored_checkpoints,
    write_note,
)
from dlemu.config.schema import Checkpoint, Model
from dlemu.ranks.row_log import RowLog, read_row_logs, row_log_name

STORAGE = posix.Storage()
BLOCK = block_name(1, 2)


def saved(folder: Path, name: str = BLOCK) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "a.pt").write_bytes(b"somebody's")
    return folder / name / "a.pt"


# Folders that training writes


def test_a_run_may_replace_what_a_run_of_dlemu_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "saved"
    claim_blocks(STORAGE, f"{folder}/", [BLOCK, "epoch_1_block_1"])
    file = saved(folder)
    claim_blocks(STORAGE, str(folder), ["epoch_2_block_1", BLOCK])
    claim_blocks(STORAGE, str(folder), [BLOCK])
    assert file.exists()
    assert json.loads((folder / BLOCKS).read_bytes()) == ["epoch_1_block_1", BLOCK, "epoch_2_block_1"]


@pytest.mark.parametrize("noted", ["", "[", "{}", f'{{"{BLOCK}": 1}}', '["epoch_1_block_1", 5]', "[" * 99_999, "\\"])
def test_what_no_run_of_dlemu_wrote_is_refused_and_stays(noted: str, tmp_path: Path) -> None:
    file = saved(tmp_path)
    if noted:
        (tmp_path / BLOCKS).write_text(noted)
    with pytest.raises(UserError, match=rf"{BLOCK} holds files that dlemu did not write, .*checkpoint_folder to a new"):
        claim_blocks(STORAGE, str(tmp_path), ["epoch_9_block_9", BLOCK])
    assert file.read_bytes() == b"somebody's"
    assert (tmp_path / BLOCKS).exists() == bool(noted)
    claim_blocks(STORAGE, str(tmp_path), ["epoch_9_block_9"])  # where nothing lies


def test_a_file_or_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / BLOCK).write_text("x")
    with pytest.raises(UserError, match="holds files that dlemu did not write"):
        claim_blocks(STORAGE, str(tmp_path), [BLOCK])
    (tmp_path / BLOCK).unlink()
    (tmp_path / "epoch_9_block_9").mkdir()
    claim_blocks(STORAGE, str(tmp_path), [BLOCK, "epoch_9_block_9"])  # an empty folder is nobody's
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / BLOCK).symlink_to("elsewhere")
    with pytest.raises(UserError, match="holds files that dlemu did not write"):
        claim_blocks(STORAGE, str(tmp_path), [BLOCK])


# Notes


def note(**changes: Any) -> StoredNote:
    made = StoredNote(seed=7, checkpoint=3, ranks=4, bytes=9, model=Model(name="m"), settings=Checkpoint())
    return replace(made, **changes)


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert read_note(STORAGE, folder) is None
    assert read_note(STORAGE, f"{folder}/none") is None
    for fsync in (False, True):
        write_note(STORAGE, folder, note(), fsync=fsync)
        assert read_note(STORAGE, folder) == note()
    assert not note().complete
    assert note().description == "m by 4 ranks from rank 0 on, 9 bytes in format torch"
    assert list(files_in(STORAGE, folder)) == [], "the note is no file of the checkpoint"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"{", r"is damaged \(.*write the checkpoint again"),
        (b"\xff", r"is damaged \(.*write the checkpoint again"),
        (b'{"odd":' * 100_000, r"is damaged \(.*write the checkpoint again"),
        (b'{"seed": 1}', r"is damaged \(.*write the checkpoint again"),
        ("version", "was written by another version of dlemu: write the checkpoint again"),
        ("bulk_version", "was written by another version of dlemu: write the checkpoint again"),
        ("folder", r"can't be .* accessed: .*; see .*, or set checkpoint.checkpoint_folder to another"),
    ],
)
def test_a_note_that_cannot_be_read_is_named(damage: bytes | str, words: str, tmp_path: Path) -> None:
    if damage == "folder":
        (tmp_path / NOTE).mkdir()
    elif isinstance(damage, str):
        write_note(STORAGE, str(tmp_path), note(**{damage: 99}), fsync=False)
    else:
        (tmp_path / NOTE).write_bytes(damage)
    with pytest.raises(UserError, match=rf"{tmp_path}/{NOTE} {words}"):
        read_note(STORAGE, str(tmp_path))


# Folders of runs that only checkpoint


def test_checkpoints_are_listed_by_number_and_nothing_else_is(tmp_path: Path) -> None:
    for number in ("10", "9", "100", "x", "1_"):
        (tmp_path / f"global_epoch1_step{number}").mkdir()
    (tmp_path / "global_epoch1_step1").write_text("no folder")
    (tmp_path / "global_epoch2_step2").mkdir()
    assert stored_checkpoints(STORAGE, f"{tmp_path}/") == stored_checkpoints(STORAGE, str(tmp_path)) == [9, 10, 100]
    assert stored_checkpoints(STORAGE, str(tmp_path / "none")) == []
    with pytest.raises(UserError, match=r"step1 can't be .* accessed: Not a directory; set checkpoint"):
        stored_checkpoints(STORAGE, str(tmp_path / "global_epoch1_step1"))


def test_a_checkpoint_that_is_half_removed_is_no_whole_one(tmp_path: Path) -> None:
    class Failing(posix.Storage):
        left = 2

        def remove(self, path: str) -> None:
            if self.left == 0:
                raise OSError(errno.EIO, "broken", path)
            self.left -= 1
            super().remove(path)

    folder, names = str(tmp_path / "global_epoch1_step3"), {"0.pt", "1.pt", "2.pt"}
    os.mkdir(folder)
    for name in (*names, "theirs"):
        Path(folder, name).touch()
    write_note(STORAGE, folder, note(complete=True), fsync=False)
    assert stored_checkpoints(STORAGE, str(tmp_path)) == [3]
    with pytest.raises(OSError, match="broken"):
        remove_checkpoint(Failing(), folder, names)
    assert len(names & {*files_in(STORAGE, folder)}) == 1
    assert read_note(STORAGE, folder) == note(), "not complete, and by which a later run knows it as its own"
    remove_checkpoint(STORAGE, folder, names)
    assert list(files_in(STORAGE, folder)) == ["theirs"]
    Path(folder, "theirs").unlink()
    remove_checkpoint(STORAGE, folder, names)
    assert list(tmp_path.iterdir()) == []


def test_behind_a_link_nothing_is_removed(tmp_path: Path) -> None:
    file = saved(tmp_path, "elsewhere")
    write_note(STORAGE, str(tmp_path / "elsewhere"), note(), fsync=False)
    link = tmp_path / "global_epoch1_step3"
    link.symlink_to("elsewhere")
    remove_checkpoint(STORAGE, str(link), {"a.pt"})
    assert file.exists()
    assert read_note(STORAGE, str(link)) == note()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_whose_note_can_not_be_marked_is_removed(
    damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, or where the note is damaged."""
    file = saved(tmp_path)
    write_note(STORAGE, str(file.parent), note(complete=True), fsync=False)
    if damaged:
        (file.parent / NOTE).write_text("{")

    fail = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr("dlemu.checkpoints.stored.write_whole", fail)
    remove_checkpoint(STORAGE, str(file.parent), {file.name})
    assert not file.parent.exists()


# Rows


def test_rows_outlive_the_rank_that_wrote_them(tmp_path: Path) -> None:
    log = RowLog(IO_DTYPE, f"{tmp_path}/{row_log_name(3)}")
    log.add(rank=3, phase=1, checkpoint=2, bytes=77)
    log.close()
    with open(tmp_path / row_log_name(3), "ab") as out:
        out.write(b"half a row")
    rows = read_row_logs(str(tmp_path), IO_DTYPE)
    assert rows.dtype.names == tuple(IO_COLUMNS)
    assert rows[["rank", "checkpoint", "bytes"]].tolist() == [(3, 2, 77)]


@pytest.mark.parametrize("full", ["at once", "in the middle of a row"])
def test_a_disk_without_room_for_a_row_is_named(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    if full != "at once":
        write = Mock(side_effect=lambda _descriptor, data: len(data) - 1)
    log = RowLog(IO_DTYPE, f"{tmp_path}/{row_log_name(3)}")
    monkeypatch.setattr(os, "write", write)
    words = "rows_00003 could not be written: No space left on device; free some space, or set output.folder"
    with pytest.raises(SpaceError, match=words):
        log.add(rank=3)
    monkeypatch.undo()
    log.close()
