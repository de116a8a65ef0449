"""`dlemu mlperf check --html`: one page with every result, every rule that was broken, and what was not judged."""

from __future__ import annotations

import shutil
from pathlib import Path

from click.testing import CliRunner

from dlemu.contrib.mlperf.command import command
from dlemu.contrib.mlperf.tests.checkpoint_leaves import leaves, make_result
from dlemu.contrib.mlperf.tests.golden import edit


def test_the_page_has_results_and_findings_with_their_evidence_and_loads_nothing(tmp_path: Path) -> None:
    folder = make_result(tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree/closed/acme/systems")
    for path in leaves(folder)[0].glob("*_metadata.json"):
        edit(path, lambda told: told.update(num_processes="<b>16</b>", exit_status=3))
    page = tmp_path / "page.html"
    asked = CliRunner().invoke(command, ["check", str(tmp_path / "tree"), "--html", str(page)])
    assert asked.exit_code == 1
    html = page.read_text()
    for part in ("INVALID", "acme", "llama3-8b", "3.076", "submission.folders", "runs.exit", "unapplied"):
        assert part in html
    assert "<b>16</b>" not in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "exit_status is 3" in html
