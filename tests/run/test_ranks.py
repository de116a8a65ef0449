"""What ranks know before the configuration is read, and what those that fail leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.comm.failure import Failure, killed
from dlemu.run.launched import start_seconds
from dlemu.run.ranks import ForkedRanks, RunFailedError, RunUserError, cause, leave_word
from dlemu.run.save_run import Kept
from tests.runs import make_job


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ([], 600.0),
        (["workload=unet3d", "timeout_seconds=30"], 30.0),
        (["++workload.timeout_seconds=2.5"], 2.5),
        (["timeout_seconds=30", "+timeout_seconds=40"], 40.0),
        (["timeout_seconds=soon"], 600.0),
        (["timeout_seconds=0"], 600.0),
        (["timeout_seconds=1.2.3"], 600.0),
    ],
)
def test_the_command_line_tells_the_time_limit(overrides: list[str], seconds: float) -> None:
    assert start_seconds(overrides) == seconds


def test_the_first_word_that_is_no_echo_is_the_cause(tmp_path: Path) -> None:
    leave_word(str(tmp_path), 2, "rank 1 is gone", echo=True)
    leave_word(str(tmp_path), 1, "file x is truncated", echo=False)
    leave_word(str(tmp_path), 0, "file y is truncated", echo=False)
    assert cause(str(tmp_path)) == "file x is truncated"


def test_a_rank_killed_while_it_speaks_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "failure_00001.json.part").write_text('{"echo": tr')
    assert "killed from outside" in cause(str(tmp_path))
    leave_word(str(tmp_path), 0, "rank 1 is gone", echo=True)
    assert cause(str(tmp_path)) == "rank 1 is gone"


def test_no_word_where_the_run_s_folder_is_not_seen(tmp_path: Path) -> None:
    leave_word(str(tmp_path / "elsewhere"), 0, "lost", echo=False)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_forked_ranks_says_what_was_kept() -> None:
    with (
        pytest.raises(
            RunFailedError, match=r"killed by SIGKILL(?s:.*)\n24 steps were measured before .* in folder"
        ) as failed,
        ForkedRanks().guard(make_job(), lambda message: Kept("folder", 24)),
    ):
        raise RunFailedError(killed(1, 99, 9, 0))
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


def test_what_goes_wrong_before_the_ranks_start_is_raised_as_it_is() -> None:
    dropped: list[str] = []
    with pytest.raises(UserError, match="no memory"), ForkedRanks().guard(make_job(), dropped.append):
        raise UserError("no memory")
    assert dropped == ["no memory"]
