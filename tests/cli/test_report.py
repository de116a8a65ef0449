"""`dlemu report`, and the page that a run makes at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from datagen.errors import UserError
from dlemu.cli.options import make_page
from dlemu.cli.report import command as report
from tests.report.folders import write_run

for package in ("altair", "vl_convert"):
    pytest.importorskip(package, reason="the extra `report` is not installed")


def test_it_says_where_the_page_and_the_pictures_are(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", telemetry=False)
    ended = CliRunner().invoke(report, [str(folder), "--png", "--svg"], catch_exceptions=False)
    screen, _, written = ended.output.partition("\nreport: ")
    assert f"dlemu report {folder} --details" in screen
    told = [Path(line.rpartition(": ")[2]) for line in written.splitlines()]
    assert told[0] == folder / "report.html"
    assert {path.suffix for path in told} == {".html", ".png", ".svg"}
    assert all(path.parent in (folder, folder / "figures") and path.stat().st_size > 2000 for path in told)
    assert (folder / "figures" / "step_split.png").read_bytes().startswith(b"\x89PNG")


def test_where_the_page_or_its_pictures_can_not_be_written_it_names_the_option(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", telemetry=False)
    (folder / "figures").write_text("a file where the folder would be")
    with pytest.raises(UserError, match=r"figures could not be written: .*; write the report elsewhere with --output"):
        CliRunner().invoke(report, [str(folder), "--png"], catch_exceptions=False)
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    with pytest.raises(UserError, match=rf"; `dlemu report {folder} --output FILE` writes elsewhere"):
        CliRunner().invoke(report, [str(folder)], catch_exceptions=False)


def test_several_folders_get_a_page_each(tmp_path: Path) -> None:
    folders = [str(write_run(tmp_path / name, telemetry=False, ranks=ranks)) for name, ranks in (("a", 1), ("b", 2))]
    apart = CliRunner().invoke(report, folders, catch_exceptions=False)
    pages = [line for line in apart.output.splitlines() if line.startswith("report: ")]
    assert pages == [f"report: {folder}/report.html" for folder in folders]
    refused = CliRunner().invoke(report, [*folders, "--output", str(tmp_path / "both.html")])
    assert (refused.exit_code, "`dlemu compare` shows two side by side" in refused.output) == (2, True)


def test_a_page_that_fails_is_a_note_and_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_page(str(tmp_path))
    said, meanwhile = capsys.readouterr()
    assert meanwhile == "making the page ...\n"
    assert "no page was made (dlemu: " in said
    assert f"to try again: dlemu report {tmp_path}" in said
