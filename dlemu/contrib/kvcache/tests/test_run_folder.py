"""Where a run's blocks lie: away from where those of the run before it were."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datagen import owned
from datagen.errors import SpaceError, UserError
from dlemu.contrib.kvcache import run_folder
from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import RANK_ROW
from dlemu.runner.rows_job import RowsLog


def test_objects_that_a_server_does_not_let_go_do_not_hide_the_failure_of_the_run() -> None:
    class Refusing:
        def entries(self, folder: str) -> Any:
            raise UserError("the credentials have expired")

        def remove_folder(self, folder: str) -> None:
            raise UserError("the credentials have expired")

    refusing: Any = Refusing()
    assert run_folder.remove_objects(refusing, "kv/rank") is False
    kept_job: Any = job(Path("kv"))
    kept_job.folder = "results/k"
    rows = np.array([(3,), (RANK_ROW,)], [("prompt", np.int64)])
    log = RowsLog(rows, None)  # type: ignore[arg-type]  # nobody looks at the journal
    assert JOB.kept(kept_job, log).endswith("results/k")


def job(folder: Path, seed: int = 7) -> Any:
    """Return what `begin` looks at."""
    storage = SimpleNamespace(has_paths=True, resolved=lambda name: name)
    settings = KvSettings(folder=str(folder), odirect=False)
    return SimpleNamespace(seed=seed, workload=SimpleNamespace(storage=storage, section=lambda kind: settings))


def test_a_host_that_does_not_share_the_folder_makes_it_and_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    killed, one = job(tmp_path / "kv", seed=6), job(tmp_path / "kv")
    run_folder.create_run_folder(killed)
    for _ in range(2):  # then it is there, as on a host that shares it
        run_folder.create_run_folder(one)
    assert not os.path.exists(run_folder.run_folder(killed))
    with run_folder.created_rank_folder(one, 0, 3) as first, run_folder.created_rank_folder(one, 1, 3) as second:
        assert Path(first).parent == Path(second).parent == Path(run_folder.run_folder(one))
    run_folder.remove_run(one)
    assert os.listdir(tmp_path / "kv") == [owned.MARKER], "the next run there may use it"


@pytest.mark.parametrize("shared", [False, True])
def test_a_host_removes_what_a_failed_run_left_if_no_other_uses_it(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(tmp_path / "kv")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "node-0")
        if shared:
            run_folder.create_run_folder(one)
    run_folder.create_run_folder(one)
    owned.fresh_folder(run_folder.run_folder(one), "rank")
    JOB.clean_up_elsewhere(one)
    assert os.path.isdir(run_folder.run_folder(one)) == shared


@pytest.mark.parametrize("calls", range(7))
def test_a_full_quota_is_no_room_and_leaves_the_users_folder_as_it_was(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the files and folders is the first that can't be made."""
    left, mkdir = calls, os.mkdir

    def limited(make: Any) -> Any:
        def called(path: Any, *words: Any, **more: Any) -> Any:
            nonlocal left
            creates = make is mkdir or words[0] & os.O_CREAT
            left -= bool(creates and not os.path.lexists(path))
            if left < 0:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
            return make(path, *words, **more)

        return called

    kv = tmp_path / "kv"
    kv.mkdir()
    one = job(kv)
    begun = False
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", limited(os.open))
        patch.setattr(os, "mkdir", limited(os.mkdir))
        try:
            run_folder.create_run_folder(one)
            with run_folder.created_rank_folder(one, 0, 3):
                begun = True
        except SpaceError as error:
            assert os.strerror(errno.EDQUOT) in str(error)  # noqa: PT017
    assert begun == (calls >= 6), "marker, run, its marker, rank, its marker, lock"
    assert run_folder.remove_failed(one)
    assert os.listdir(kv) == []
    kv.rmdir()


def test_blocks_that_a_failing_disk_keeps_are_left_and_go_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(tmp_path / "kv")
    run_folder.create_run_folder(one)

    def fail(*words: Any, **more: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        with run_folder.created_rank_folder(one, 0, 3) as folder:
            patch.setattr(os, "unlink", fail)
        assert not run_folder.remove_failed(one), "the message says that blocks are left"
        assert os.path.isdir(folder)
    run_folder.create_run_folder(job(tmp_path / "kv", seed=8))
    assert not os.path.exists(run_folder.run_folder(one))


def test_a_marker_that_lists_another_run_stays(tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    kv.mkdir()
    run_folder.create_run_folder(job(kv, seed=6))
    run_folder.remove_run(job(kv, seed=6))
    run_folder.create_run_folder(job(kv))
    run_folder.remove_failed(job(kv))
    assert os.listdir(kv) == [owned.MARKER]


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="which holds files that dlemu did not make, such as"):
        run_folder.create_run_folder(job(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]
