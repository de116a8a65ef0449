"""Datasets are made whole or not at all by any number of ranks and threads, and what is not as it was made is named."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from datagen import manifest, thread_pool
from datagen.errors import DatasetError, SpaceError, UserError
from datagen.generate import finish, generate, prepare
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.manifest import MANIFEST_NAME
from datagen.owned import part_name
from datagen.spec import DatasetSpec
from datagen.storage import posix
from datagen.storage.storage_base import FOLDERS, Bytes, StorageSpec
from datagen.verify import Damage, verify
from tests.datagen.conftest import MakeSpec, make
from tests.datasets import small_disk


def contents(folder: str) -> dict[str, bytes]:
    """Return every file below a folder, but for the manifest."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != manifest.MANIFEST_NAME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def paths(spec: DatasetSpec) -> list[str]:
    return [layout.path(i) for layout in layouts(spec) for i in range(layout.num_files)]


def test_ranks_and_threads_make_the_same_bytes(small: MakeSpec, tmp_path: Path) -> None:
    alone = make(small(num_subfolders_train=2))
    shared = small(num_subfolders_train=2, data_folder=str(tmp_path / "shared"))
    prepare(shared)
    made = [generate(shared, rank=rank, ranks=4, threads=3, fsync=True) for rank in range(4)]
    finish(shared)
    assert sorted(part.files for part in made) == [2, 2, 2, 3]
    assert contents(shared.data_folder) == contents(alone.data_folder)
    assert sum(part.bytes for part in made) == sum(map(len, contents(shared.data_folder).values()))


def test_what_is_there_is_kept(small: MakeSpec) -> None:
    spec = make(small())
    before = {path: os.stat(path).st_mtime_ns for path in paths(spec)}
    os.unlink(paths(spec)[2])
    os.truncate(paths(spec)[4], 10)
    prepare(spec)
    made = generate(spec)
    finish(spec)
    assert (made.files, made.kept_files) == (2, 7)
    after = {path: os.stat(path).st_mtime_ns for path in paths(spec)}
    assert {path for path in before if before[path] != after[path]} == {paths(spec)[2], paths(spec)[4]}
    assert verify(spec) == []


def test_files_of_others_and_another_dataset_stay_as_they_are(small: MakeSpec, tmp_path: Path) -> None:
    spec = make(small())
    before = contents(spec.data_folder)
    seen = "num_files_train is 6 in the dataset and 7 in the settings; seed is 0 in the dataset and 1"
    with pytest.raises(UserError, match=seen):
        prepare(replace(spec, num_files_train=7, seed=1))
    Path(spec.data_folder, manifest.MANIFEST_NAME).unlink()
    local_root = StorageSpec(type="fsspec", root=f"file://{tmp_path}")
    for same, storage in ((spec, FOLDERS), (replace(spec, data_folder="data"), local_root)):
        with pytest.raises(UserError, match=r"files that dlemu did not make, such as .*\.npz"):
            prepare(same, storage)
    assert contents(spec.data_folder) == before


def test_finish_needs_every_file(small: MakeSpec) -> None:
    spec = small()
    prepare(spec)
    generate(spec, rank=0, ranks=2)
    with pytest.raises(DatasetError, match=r"4 of 9 files have not been made .*img_1_of_6\.npz"):
        finish(spec)
    made = manifest.read(spec.data_folder, posix.Storage())
    assert made is not None
    assert not made.complete


def test_killed_in_the_middle_it_goes_on(small: MakeSpec, tmp_path: Path) -> None:
    spec = small()
    prepare(spec)
    process = os.fork()
    if process == 0:
        writes, write = itertools.count(1), posix.FileWriter.write

        def killed(self: posix.FileWriter, data: Bytes) -> None:
            last = next(writes) == 22
            write(self, data[: len(data) // 2] if last else data)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with patch.object(posix.FileWriter, "write", killed):
                generate(spec)
        finally:
            os._exit(1)  # else a child that nobody kills would go on with the tests
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    done = [path for path in paths(spec) if os.path.exists(path)]
    assert 0 < len(done) < 9
    assert any(name.endswith(".part") for name in os.listdir(layouts(spec)[0].folder))
    with pytest.raises(DatasetError, match="never finished"):
        inspect(spec)
    prepare(spec)
    assert generate(spec).kept_files == len(done)
    finish(spec)
    assert contents(spec.data_folder) == contents(make(small(data_folder=str(tmp_path / "other"))).data_folder)
    assert verify(spec) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[str]:
    with small_disk(tmp_path / "tiny", "96k") as folder:
        yield str(folder)


def test_a_disk_too_small_is_told_before(small: MakeSpec, tiny_disk: str) -> None:
    with pytest.raises(SpaceError, match=r"bytes free and \d+ are still to be made: free \d+ bytes"):
        prepare(small(data_folder=tiny_disk))


def test_a_full_disk_leaves_whole_files_and_resumes(small: MakeSpec, tiny_disk: str) -> None:
    spec = small(data_folder=tiny_disk, num_files_train=3, num_files_eval=0, record_length_bytes_stdev=0)
    prepare(spec)
    ballast = Path(tiny_disk, "ballast")
    ballast.write_bytes(bytes(70_000))
    with pytest.raises(SpaceError, match=r"no room for .*img_1_of_3\.npz .* needs 20\d{3} bytes.*same command again"):
        generate(spec)
    assert os.listdir(layouts(spec)[0].folder) == ["img_0_of_3.npz"]
    ballast.unlink()
    assert generate(spec, threads=2).kept_files == 1
    finish(spec)
    assert verify(spec) == []


@pytest.mark.parametrize(
    ("number", "left"),
    [(errno.ENOSPC, r"\d+ are free, maybe for no more files \(df -i"), (errno.EDQUOT, "the quota is used up")],
)
def test_a_quota_is_told_from_a_full_disk(
    number: int, left: str, small: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system may have room: its free bytes are not those of the user."""
    spec, pwrite = small(), Mock(side_effect=OSError(number, os.strerror(number)))
    prepare(spec)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", pwrite)
        with pytest.raises(SpaceError, match=rf"no room for .*{os.strerror(number)}.* and {left}.*same command again"):
            generate(spec)
    assert contents(spec.data_folder) == {}, "nothing half-made"
    assert verify(make(spec)) == []


@pytest.mark.parametrize(
    ("call", "words"), [("open", ""), ("unlink", "Operation not permitted: the dataset can't be written there")]
)
def test_a_part_of_another_user_stays(call: str, words: str, small: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can't be opened may be under way; one that can't be removed, as in a sticky folder, is named."""
    spec, whole = make(small()), getattr(os, call)
    part = Path(layouts(spec)[0].folder, part_name("x"))
    part.touch()

    def refuse(path: str, *more: int, **words: int) -> int | None:
        if path == str(part):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        result: int | None = whole(path, *more, **words)
        return result

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UserError, match=f"{part}: {words}") if words else contextlib.nullcontext():
        prepare(spec)
    assert part.exists()


def test_nothing_is_made_behind_a_link(small: MakeSpec, tmp_path: Path) -> None:
    spec, behind = small(), tmp_path / "behind"
    make(spec)
    folder = Path(layouts(spec)[0].folder)
    folder.rename(behind)
    folder.symlink_to(behind)
    prepare(spec)  # a dataset that was moved and is whole stays usable
    first = sorted(behind.iterdir())[0]
    first.write_text("of the user")
    with pytest.raises(UserError, match=r"is a link out of .*: missing files are not created behind it"):
        prepare(spec)
    assert first.read_text() == "of the user"


def test_an_interrupt_stops_every_thread_and_leaves_no_part(small: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small(num_files_train=400)
    prepare(spec)
    monkeypatch.setattr(thread_pool, "PROGRESS_SECONDS", 0.0)

    def interrupt(progress: thread_pool.Progress) -> None:
        if progress.files >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(spec, threads=2, progress=interrupt)
    names = os.listdir(layouts(spec)[0].folder)
    assert names
    assert not [name for name in names if name.endswith(".part")]


def test_after_a_failure_no_further_file_is_opened() -> None:
    find = Mock(side_effect=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        thread_pool.map_in_threads(find, range(1000))
    assert find.call_count <= 16
    assert thread_pool.map_in_threads(find, []) == []


def test_fsync_comes_before_the_name(small: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock(fsync=Mock(wraps=os.fsync), rename=Mock(wraps=os.rename))
    monkeypatch.setattr(os, "fsync", calls.fsync)
    monkeypatch.setattr(os, "rename", calls.rename)
    spec = small(num_files_train=2, num_files_eval=0)
    prepare(spec)
    calls.reset_mock()
    generate(spec, fsync=True)
    assert [name for name, *_ in calls.mock_calls] == ["fsync", "rename"] * 2
    finish(spec)
    assert [name for name, *_ in calls.mock_calls][-2:] == ["fsync", "rename"]


def test_a_limit_on_file_sizes(small: MakeSpec) -> None:
    spec = small(record_length_bytes_stdev=0)
    prepare(spec)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(SpaceError, match="limit on file sizes"):
            generate(spec, threads=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(spec.data_folder) == {}


def only(spec: DatasetSpec, **options: Any) -> Damage:
    findings = verify(spec, **options)
    assert len(findings) == 1
    return findings[0]


def test_ranks_share_the_files(small: MakeSpec) -> None:
    spec = make(small())
    os.unlink(layouts(spec)[0].path(3))
    assert [len(verify(spec, rank=rank, ranks=2)) for rank in range(2)] == [0, 1]


def test_the_first_block_behind_a_moved_block(small: MakeSpec) -> None:
    """A storage that returns the right file from a wrong offset is found, and its offset told."""
    spec = make(small(record_length_bytes_stdev=0))
    path = Path(layouts(spec)[0].path(0))
    data = path.read_bytes()
    path.write_bytes(data[: 183 + 4096] + data[183 + 8192 : 183 + 12288] + data[183 + 8192 :])
    assert "file number 0, payload offset 8192" in only(spec).message


def test_without_a_manifest_nothing_is_known(small: MakeSpec) -> None:
    spec = make(small())
    os.unlink(os.path.join(spec.data_folder, MANIFEST_NAME))
    with pytest.raises(DatasetError, match="dlemu did not make this dataset"):
        verify(spec)


def test_compressed_files_are_generated_again(small: MakeSpec) -> None:
    spec = make(small(compression="zip"))
    assert verify(spec) == []
    path = Path(layouts(spec)[0].path(1))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    message = only(spec).message
    assert message.startswith("it differs from what was generated, at offset 300: ")
    assert message.endswith("; the version of the library that compresses decides on its bytes, too")


@pytest.mark.parametrize("stdev", [0, 6000])
def test_files_that_are_swapped_too_long_or_of_another_seed_are_said_to_be(
    small: MakeSpec, tmp_path: Path, stdev: int
) -> None:
    spec = make(small(record_length_bytes_stdev=stdev))
    foreign = make(small(seed=1, record_length_bytes_stdev=stdev, data_folder=str(tmp_path / "other")))
    one, two, three, other = (Path(layouts(spec)[0].path(file)) for file in (1, 2, 3, 4))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    os.replace(layouts(foreign)[0].path(2), two)
    os.truncate(three, 50_000)
    findings = verify(spec)
    assert [finding.path for finding in findings] == [str(path) for path in (one, two, three, other)]
    words = ("file number 4", "another dataset", "it has 50000 bytes, wanted", "file number 1")
    assert all(word in finding.message for word, finding in zip(words, findings, strict=True))
