"""What ranks know before the configuration is read, and what those that fail leave behind."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datagen import owned
from datagen.errors import SpaceError, UserError
from dlemu.comm import Interrupted, PeerLostError
from dlemu.comm.failure import Failure, describe
from dlemu.config.schema import Workload
from dlemu.results.file_names import LIVE
from dlemu.runner import launched, ranks
from dlemu.runner.ranks import ForkedRanks, LaunchedRanks, RunFailedError, RunUserError, cause, write_failure
from dlemu.runner.run_folder import Kept, check_folder
from tests.runs import make_job


def test_the_first_word_that_is_no_echo_is_the_cause(tmp_path: Path) -> None:
    write_failure(str(tmp_path), describe(2, PeerLostError("rank 1 is gone")))
    write_failure(str(tmp_path), describe(1, UserError("file x is truncated")))
    write_failure(str(tmp_path), describe(0, UserError("file y is truncated")))
    assert cause(str(tmp_path)) == "file x is truncated"


def test_a_rank_killed_while_it_speaks_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "failure_00001.json.part").write_text('{"echo": tr')
    assert "killed from outside" in cause(str(tmp_path))
    write_failure(str(tmp_path), describe(0, PeerLostError("rank 1 is gone")))
    assert cause(str(tmp_path)) == "rank 1 is gone"


class Launched:
    """What `ending_all` needs of a rank of a launcher's."""

    launcher_ends_all = True

    def __init__(self, rank: int) -> None:
        self.rank, self.did = rank, ""

    def close(self) -> None:
        self.did = "closed"

    def abort(self, status: int, message: str) -> None:
        assert message
        self.did = f"aborted with {status}"


@pytest.mark.parametrize(
    ("rank", "error", "seconds", "said", "status"),
    [
        (0, UserError("the disk is full"), [], "the disk is full", 2),
        (2, UserError("the disk is full"), [], "here: the disk is full", 2),
        (2, PeerLostError("rank 1 ended"), [2.6], "here: rank 1 ended", 3),
        (2, Interrupted(15), [], "here: rank 2 was interrupted by SIGTERM", 143),
        (0, ValueError("odd"), [], "Traceback .*ValueError: odd", 3),
    ],
)
def test_a_rank_that_fails_says_so_and_ends_all(
    rank: int, error: BaseException, seconds: list[float], said: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that only lost another leaves it to that one, and then to those before it."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setenv("PMI_RANK", str(rank))
    comm, told = Launched(rank), list[str]()
    with pytest.raises(SystemExit) as ended, launched.ending_all(comm, told.append):  # type: ignore[arg-type]
        raise error
    assert (ended.value.code, comm.did, slept) == (status, f"aborted with {status}", seconds)
    assert re.fullmatch(said, told[0], re.DOTALL)


def test_the_folder_of_a_lost_run_is_taken_until_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that took it in between would lose its own live folder."""
    monkeypatch.setattr(ranks, "ECHO_SECONDS", 0)
    job: Any = SimpleNamespace(folder=str(tmp_path), live_folder=str(tmp_path / LIVE))
    (tmp_path / LIVE).mkdir()
    owned.claim(str(tmp_path), LIVE)

    def save_failed(message: str) -> None:
        with pytest.raises(SpaceError, match="is being saved"):
            check_folder(str(tmp_path))

    ranks._save_lost(job, save_failed, "")
    check_folder(str(tmp_path))


def test_a_failure_of_forked_ranks_says_what_was_kept() -> None:
    with (
        pytest.raises(
            RunFailedError,
            match=r"killed by SIGKILL(?s:.*)\nkept, marked incomplete, in folder: 24 steps measured before that",
        ) as failed,
        ForkedRanks().guard(make_job(), lambda message: Kept("folder", 24)),
    ):
        raise RunFailedError(
            Failure(rank=1, kind="Signal", message="rank 1 was killed by SIGKILL", status=137, at_ns=0)
        )
    assert failed.value.exit_status == 137
    assert failed.value.kept == Kept("folder", 24)


def test_a_failure_that_the_user_can_mend_is_a_user_error() -> None:
    full = Failure(rank=0, kind="SpaceError", message="the disk is full", status=2, at_ns=0)

    def save_failed(message: str) -> None:
        raise UserError("it is still full")

    with (
        pytest.raises(RunUserError, match="the disk is full\nit is still full"),
        ForkedRanks().guard(make_job(), save_failed),
    ):
        raise RunFailedError(full)


@pytest.mark.parametrize("same_disk", [True, False])
def test_a_full_results_disk_is_told_once_with_the_way_out(same_disk: bool) -> None:
    job = make_job()
    path = f"{job.folder}/live/journal.json" if same_disk else "/mnt/checkpoints/step1"
    first = f"the disk is full: {path} could not be written; free some space"
    second = f"the disk is full: {job.folder}/config.yaml could not be written; once there is space, `dlemu report` ..."

    def save_failed(message: str) -> None:
        raise SpaceError(second)

    with pytest.raises(RunUserError) as failed, ForkedRanks().guard(job, save_failed):
        raise RunFailedError(Failure(rank=0, kind="SpaceError", message=first, status=2, at_ns=0))
    assert str(failed.value) == (second if same_disk else f"{first}\n{second}")


def test_hosts_with_another_version_are_named() -> None:
    names: dict[str, Any] = {"hosts": ("a", "b"), "versions": ("0.2.0", "0.1.0")}
    comm: Any = SimpleNamespace(rank=0, size=2, broadcast=lambda value: value, **names)
    with pytest.raises(UserError, match=r"different versions of dlemu \(0.2.0 on a, 0.1.0 on b\)"):
        LaunchedRanks(comm, []).configure(Workload)
