"""dlemu removes what it made, and nothing else, whatever a marker says."""

from __future__ import annotations

import ast
import builtins
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen import owned
from datagen.errors import SpaceError, UserError
from datagen.owned import MARKER
from tests.budget import product
from tests.parts import needs_all_parts
from tests.users_files import UsersFiles

ROOT = Path(__file__).parent.parent.parent
OTHERS_THAT_REMOVE = {
    "datagen/atomic.py": "the file under way that could not be finished",
    "datagen/generate.py": "what killed writers of dlemu left in a dataset of its own",
    "datagen/storage/_request_counts.py": "counts of a run of ours, by a name that only dlemu gives",
    "datagen/storage/posix.py": "the storage: callers name the file",
    "datagen/storage/s3.py": "the storage: callers name the object; uploads of its own writers, or that a record names",
    "dlemu/checkpoints/save.py": "a file of a checkpoint that claim_blocks noted as ours, to be replaced",
    "dlemu/checkpoints/stored.py": "names of the plan, in a folder with our note",
    "dlemu/ranks/mpi.py": "memory of MPI's that this process has mapped",
    "dlemu/jobs/checkpoint/loop.py": "the token that this run left",
    "dlemu/contrib/kvcache/mover.py": "blocks of the plan, in the folder or below the prefix that this run made",
    "dlemu/contrib/kvcache/run_folder.py": "objects below the prefix that this run made",
    "dlemu/contrib/pack/job.py": "files under way, which killed processes of a packing left",
    "dlemu/jobs/probe/probe_file.py": "files of its own and of killed probes, by their name, lock and owner",
    "dlemu/jobs/checkpoint/run.py": "the token that this run left",
}
"""Files besides owned.py that remove something, and what."""
REMOVING = {"rmtree", "unlink", "rmdir", "removedirs", "remove_folder", "remove_unfinished"}
"""Methods and functions that remove files whoever has them; `remove` is also one of lists."""


@needs_all_parts
def test_nothing_is_removed_outside_of_the_list() -> None:
    found = set()
    for path in product():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                deletes = any(ast.unparse(word.value) == "'DELETE'" for word in node.keywords)
                if deletes or node.func.id in REMOVING | {"_abort"}:
                    found.add(path.relative_to(ROOT).as_posix())
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner, called = ast.unparse(node.func.value), node.func.attr
                if called in REMOVING or (called == "remove" and (owner == "os" or "storage" in owner)):
                    found.add(path.relative_to(ROOT).as_posix())
                assert called != "rmtree" or path.name == "owned.py", f"{path}:{node.lineno} removes a tree"
    assert found - {"datagen/owned.py"} == set(OTHERS_THAT_REMOVE)


@pytest.mark.parametrize("has_others", [False, True])
def test_what_was_claimed_goes_and_nothing_else(has_others: bool, tmp_path: Path) -> None:
    taken = owned.take_folder(str(tmp_path / "a" / "run"), "output.folder")
    live = owned.fresh_folder(taken.path, "live")
    owned.claim(live, "lock", "never-made")
    Path(live, "lock").touch()
    theirs = UsersFiles()
    if has_others:
        theirs.put_everywhere(tmp_path)
    taken.drop()
    assert theirs.changed() == []
    assert not Path(live, "lock").exists()
    assert not Path(live, MARKER).exists()
    assert (list(tmp_path.iterdir()) != []) == has_others


def test_a_name_that_was_there_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    owned.claim(str(tmp_path), "notes", "own")
    assert owned.claimed(str(tmp_path)) == {"own"}
    os.close(owned.create_claimed(str(tmp_path), "log"))  # claims it, too
    assert owned.claimed(str(tmp_path)) == {"own", "log"}
    with pytest.raises(FileExistsError):
        owned.create_claimed(str(tmp_path), "notes")
    for text in ("first", "second"):  # its own it makes anew
        with open(owned.create_claimed(str(tmp_path), "own"), "w") as file:
            file.write(text)
    assert (tmp_path / "own").read_text() == "second"
    owned.remove_claimed(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize(("fails", "error"), [("read", OSError), ("unlink", OSError), ("unlink", RecursionError)])
def test_what_could_not_be_removed_is_removed_by_the_next_attempt(
    fails: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "run")
    owned.take_folder(folder, "kv.folder")
    inner = owned.fresh_folder(folder, "rank")
    owned.claim(inner, "block", "other")
    for name in ("block", "other"):
        Path(inner, name).touch()
    opening, unlink = open, os.unlink

    def fail(path: Any, *words: Any, **more: Any) -> Any:
        where = os.readlink(f"/proc/self/fd/{path if fails == 'read' else more['dir_fd']}")
        if where == f"{inner}/{MARKER}" or (fails == "unlink" and where == inner and path == "block"):
            raise error(errno.EIO, os.strerror(errno.EIO))
        return (opening if fails == "read" else unlink)(path, *words, **more)

    with monkeypatch.context() as patch:
        if fails == "read":
            patch.setattr(builtins, "open", fail)
        else:
            patch.setattr(os, "unlink", fail)
        owned.remove_claimed(folder)
    assert Path(inner, "block").exists()
    owned.remove_claimed(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_interrupted_work_is_left_and_the_next_gets_another_name(tmp_path: Path) -> None:
    first, second = (owned.fresh_folder(str(tmp_path), "point-01") for _ in range(2))
    assert [Path(path).name for path in (first, second)] == ["point-01", "point-01-2"]
    (tmp_path / "point-02").write_text("a file of somebody's")
    assert Path(owned.fresh_folder(str(tmp_path), "point-02")).name == "point-02-2"
    assert owned.claimed(str(tmp_path)) == {"point-01/", "point-01-2/", "point-02-2/"}


NAMES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["..", ".", "/", "../x", "a/../../x", "/etc/passwd", "link", "link/", "link/secret", "x/", MARKER]),
    st.sampled_from(["theirs", "theirs/", "fifo", "fifo/", "\0", "theirs/secret", "//", "./theirs"]),
)


@given(lines=st.lists(st.one_of(NAMES.map(json.dumps), st.text(max_size=12), st.sampled_from(["{", "[" * 3000, "1"]))))
def test_a_hostile_marker_reaches_nothing_outside_and_follows_no_link(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("hostile")
    outside, folder = top / "outside", top / "folder"
    for made in (outside, folder, folder / "theirs"):
        made.mkdir()
        (made / "secret").write_text("theirs")
        (made / "x").write_text("theirs")
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "fifo")
    (outside / MARKER).write_text('"secret"\n"x"\n')
    (folder / MARKER).write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    owned.remove_claimed(str(folder))
    assert sorted(path.name for path in outside.iterdir()) == [MARKER, "secret", "x"]
    assert (folder / "link").is_symlink()
    assert (folder / "fifo").exists()
    assert sorted(path.name for path in (folder / "theirs").iterdir()) == ["secret", "x"], "it has no marker of its own"


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "zero"])
def test_a_marker_that_is_no_file_names_nothing_and_is_not_written(kind: str, tmp_path: Path) -> None:
    folder, behind = tmp_path / "folder", tmp_path / "behind"
    folder.mkdir()
    (folder / "x").write_text("theirs")
    behind.write_text('"x"\n')
    if kind == "fifo":
        os.mkfifo(folder / MARKER)
    elif kind == "folder":
        (folder / MARKER).mkdir()
    else:
        (folder / MARKER).symlink_to(behind if kind == "link" else "/dev/zero")
    assert owned.claimed(str(folder)) == set()
    with pytest.raises(OSError, match=r"."):
        owned.claim(str(folder), "new")
    owned.remove_claimed(str(folder))
    assert (folder / "x").read_text() == "theirs"
    assert behind.read_text() == '"x"\n'


def test_empty_folders_and_roots_of_file_systems_are_usable(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".Trash-1000").mkdir()
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    owned.check_usable(str(tmp_path), "output.folder")
    owned.check_usable(str(tmp_path / "new"), "output.folder")
    assert owned.take_folder(str(tmp_path), "output.folder").made == ()


@pytest.mark.parametrize("name", ["photo.jpg", ".hidden", "sub/photo.jpg", "link"])
def test_a_folder_with_files_of_others_is_refused_and_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if name == "link":
        (tmp_path / name).symlink_to("nowhere")
    else:
        (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=rf"output\.folder is .* did not make, such as .*{name}: set it to a new or"):
        owned.take_folder(str(tmp_path), "output.folder")
    assert not (tmp_path / MARKER).exists()


def test_paths_that_lead_nowhere_are_errors_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    for name, what in {"file": "is not a folder", "loop": "symbolic links", "gone": "broken link"}.items():
        with pytest.raises(UserError, match=what):
            owned.check_usable(str(tmp_path / name), "output.folder")
    with pytest.raises(UserError, match="name too long"):
        owned.check_usable(str(tmp_path / ("x" * 300)), "output.folder")
    with pytest.raises(SpaceError, match="can't be written"):
        owned.take_folder(str(tmp_path / "file" / "below"), "output.folder")


def test_what_killed_writers_left_goes_and_parts_of_others_stay(tmp_path: Path) -> None:
    left, other = (tmp_path / owned.part_name(name) for name in "xy")
    left.touch()
    other.touch()
    for name in (".x.part", "x.part", ".x.dlemu-123.part", "movie.part"):
        (tmp_path / name).write_text("theirs")
    (tmp_path / owned.part_name("link")).symlink_to("movie.part")
    going_on, descriptor = owned.create_part(str(tmp_path / "x"))
    before = set(tmp_path.iterdir())
    owned.remove_parts(str(tmp_path), "x")
    assert before - set(tmp_path.iterdir()) == {left}
    owned.remove_parts(str(tmp_path))
    assert before - set(tmp_path.iterdir()) == {left, other}
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
    owned.remove_parts(str(tmp_path))
    assert before - set(tmp_path.iterdir()) == {left, other, Path(going_on)}


def test_a_scratch_folder_goes_with_all_in_it_unless_it_was_renamed(tmp_path: Path) -> None:
    with owned.scratch_folder(str(tmp_path), "leaf") as folder:
        Path(folder, "sub").mkdir()
        Path(folder, "sub", "file").touch()
    assert list(tmp_path.iterdir()) == []
    with owned.scratch_folder(str(tmp_path), "leaf") as folder:
        Path(folder, "file").touch()
        os.rename(folder, tmp_path / "leaf")
    assert [path.name for path in (tmp_path / "leaf").iterdir()] == ["file"]


def test_a_file_under_way_has_a_name_that_nobody_can_plant(tmp_path: Path) -> None:
    (tmp_path / ".x.part").symlink_to(tmp_path / "behind")
    part, descriptor = owned.create_part(str(tmp_path / "x"))
    os.close(descriptor)
    assert part != owned.create_part(str(tmp_path / "x"))[0]
    assert not (tmp_path / "behind").exists()
    for planted in ("planted", "dangling"):
        (tmp_path / planted).symlink_to(tmp_path / "behind")
        with pytest.raises(FileExistsError):
            owned.create_new(str(tmp_path / planted))
    assert not (tmp_path / "behind").exists()
