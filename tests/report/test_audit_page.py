"""The page of an audit: small, readable with hundreds of runs, and its numbers those of audit.csv."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from datagen.errors import UserError
from datagen.owned import MARKER
from dlemu.cli.audit import command
from dlemu.mlperf.audit.audited_run import AuditedRun, audit_trees
from dlemu.mlperf.audit.page import open_audit
from dlemu.mlperf.audit.saved_audit import save_audit
from dlemu.studies.pages import write_page, write_pictures
from tests.mlperf.foreign_runs import write_run
from tests.report.test_page import MOST_BYTES, NASTY

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")


def save(tree: Path) -> Path:
    """Audit a tree, save it and make the page; return the folder."""
    folder = tree / "saved"
    save_audit(str(folder), audit_trees([str(tree)]), [str(tree)], None)
    write_page([str(folder)])
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two systems of two runs, with steps, without, and one that was changed."""
    tree = tmp_path_factory.mktemp("tree")
    for number in (1, 2):
        write_run(tree / "org" / "fast" / f"run{number}", seed=number, steps=12)
        write_run(tree / "org" / "slow" / f"run{number}", "v2", seed=number, kept=0, steps=12)
    path = tree / "org" / "fast" / "run2" / "summary.json"
    changed = json.loads(path.read_text())
    changed["metric"]["train_au_mean_percentage"] += 0.5
    path.write_text(json.dumps(changed))
    return save(tree)


def test_every_run_has_a_row_with_the_numbers_of_the_csv(saved: Path) -> None:
    with open(saved / "audit.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    text = (saved / "report.html").read_text()
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", text)]
    shown = {row[3]: row for row in cells if len(row) > 12}
    assert len(lines) == 4
    assert len(shown) == 4
    for line in lines:
        row = shown[f"{float(line['au_printed_percent']):.2f}"]
        assert row[0] == Path(line["path"]).name
        assert row[6] == f"{float(line['au_whole_percent']):.2f}"
        assert float(row[11]) == pytest.approx(float(line["loss_first_step_percent"]), abs=0.0051)
        known = line["basis"] == "steps"
        assert row[4].startswith("&gt;=") != known
        if known:
            assert float(row[4]) == pytest.approx(float(line["au_dlio_v1_percent"]), abs=0.0051)
            assert ("error printed.mean" in row[-1]) == line["path"].endswith("fast/run2")


def test_the_numbers_that_stand_out_are_the_saved_ones(saved: Path) -> None:
    answer = json.loads((saved / "audit.json").read_text())
    text = (saved / "report.html").read_text()
    numbers = re.findall(r'<data class="number" value="([^"]*)" data-key="([^"]*)">', text)
    assert len(numbers) >= 7
    for value, key in numbers:
        found: Any = answer
        for part in key.split("."):
            found = found[part]
        assert float(value) == found
    assert answer["summary"]["runs_with_errors"] == 1


def test_the_page_is_red_when_a_run_has_an_error_and_says_which_rule(saved: Path) -> None:
    text = (saved / "report.html").read_text()
    assert '<section class="verdict failed">' in text
    assert "error printed.mean, 1 run: fast/run2: " in text


def test_hundreds_of_runs_stay_below_the_limit(tmp_path: Path) -> None:
    """The same runs, many times over, under long names as they are in published results."""
    for number in range(3):
        write_run(tmp_path / "tree" / f"run{number}", seed=number, steps=6, epochs=1)
        write_run(tmp_path / "tree" / f"bare{number}", "v2", seed=number, steps=6, epochs=1, kept=0)
    few = audit_trees([str(tmp_path / "tree")])
    many = [_moved(few[number % 6], number) for number in range(700)]
    save_audit(str(tmp_path / "saved"), many, ["tree"], None)
    page = Path(write_page([str(tmp_path / "saved")]))
    assert page.stat().st_size <= MOST_BYTES
    text = page.read_text()
    assert text.count(">run3<") >= 140
    assert {"audited_systems", "printed_difference", "audited_loss"} <= set(re.findall(r'<figure id="([a-z_]+)"', text))


def _moved(run: AuditedRun, number: int) -> AuditedRun:
    parts = ("Closed", f"Organisation{number // 50}", f"results/A_Long_Name_of_a_System_{number // 5}_hosts", "unet3d")
    return AuditedRun(**{**vars(run), "path": "/".join((*parts, f"run{number % 5}"))})


def test_names_of_others_are_text(tmp_path: Path) -> None:
    name = NASTY.replace("/", "_")[:60]
    write_run(tmp_path / name / "run1", steps=6, epochs=1)
    text = (save(tmp_path) / "report.html").read_text()
    assert "onerror=alert" in text
    assert "<img" not in text
    assert "<script" not in text


def test_a_run_without_any_number_has_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{broken")
    text = (save(tmp_path) / "report.html").read_text()
    assert "error file.broken, 1 run" in text


def test_pictures_are_written(saved: Path, tmp_path: Path) -> None:
    written = write_pictures([str(saved)], "png", str(tmp_path))
    assert len(written) >= 3
    assert all(Path(path).stat().st_size > 5_000 for path in written)


def test_pictures_of_a_received_result_do_not_follow_its_links(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        write_pictures([str(saved)], "svg", str(tmp_path / "figures"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_damaged_audit_is_the_users_mistake(saved: Path, tmp_path: Path) -> None:
    for content in ("{", "[]", '{"runs": []}', '{"runs": [{"path": 1}], "summary": {}}'):
        (tmp_path / "audit.json").write_text(content)
        with pytest.raises(UserError, match=r"audit\.json"):
            open_audit(str(tmp_path))


def test_the_command_saves_and_says_where(tmp_path: Path) -> None:
    write_run(tmp_path / "tree" / "run1", steps=6, epochs=1)
    words = [str(tmp_path / "tree"), "--report", str(tmp_path / "out")]
    told = CliRunner().invoke(command, words)
    assert told.exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"audit.json", "audit.csv", "report.html", MARKER}
    with pytest.raises(UserError, match="--report"):
        CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
