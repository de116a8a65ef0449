"""The words of dying ranks: the first that is no echo is the cause, and half a word is none."""

from __future__ import annotations

from pathlib import Path

from dlemu.cli.last_words import cause, leave_word


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
