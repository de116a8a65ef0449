"""`dlemu record` as a user types it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from datagen.errors import DlemuError, UserError
from dlemu.contrib.record.answer import read_record
from dlemu.contrib.record.command import command
from dlemu.contrib.record.rows import ROWS
from dlemu.contrib.record.run import record
from dlemu.results.kinds import kind_of
from tests.e2e.harness import dlemu

JOB = str(Path(__file__).with_name("job.py"))


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({}, "wanted a job to record"),
        ({"command": ("true",), "rows": "x"}, "wanted a job to record"),
        ({"rows": "nowhere"}, "--rows is nowhere, which is not a folder"),
        ({"command": ("true",), "out": "there.yaml"}, "there.yaml already exists"),
        ({"command": ("true",), "out": "job.txt"}, "wanted a name that ends in .yaml"),
        ({"command": ("true",), "out": "no/job.yaml"}, "in a folder that is there"),
        ({"command": ("no-such-program-here",)}, "can't be started"),
        ({"command": ("true",)}, "the job left no rows"),
        ({"command": (sys.executable, "-c", "")}, "the job left no rows"),
    ],
)
def test_what_can_not_be_recorded_is_refused_with_what_to_do(
    question: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("somebody's")
    with pytest.raises(UserError, match=says.replace(".", r"\.")):
        record(**question, folder=str(tmp_path / "answer"))
    assert Path("there.yaml").read_text() == "somebody's"
    assert os.listdir() == ["there.yaml"], "no folder of a recording that holds nothing"


@pytest.mark.parametrize(
    ("line", "ended"), [("exit 3", "with status 3"), ("exit 2", "with status 2"), ("kill -9 $$", "by signal 9")]
)
def test_a_job_that_fails_before_its_first_batch_has_failed(line: str, ended: str, tmp_path: Path) -> None:
    with pytest.raises(DlemuError, match=f"the job ended {ended} before it took a batch") as failure:
        record(("sh", "-c", line), folder=str(tmp_path / "answer"))
    assert failure.value.exit_status == 3, "as of a job that fails later"


def test_rows_of_which_no_recipe_can_be_made_are_kept(tmp_path: Path) -> None:
    row = '"k":"process","version":1,"pid":1,"ranks":1'
    line = f'mkdir "$DLEMU_RECORD"; echo \'{{{row}}}\' > "$DLEMU_RECORD/1.jsonl"'
    with pytest.raises(UserError, match="0 batches of"):
        record(("sh", "-c", line), folder=str(tmp_path / "answer"))
    assert [path.name for path in (tmp_path / "answer" / ROWS).iterdir()] == ["1.jsonl"]


def test_a_job_that_failed_is_a_failure_however_well_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, replayable, wanted in ((7, True, 3), (-9, None, 3), (0, True, 0), (None, False, 1), (0, None, 4)):
        answer = SimpleNamespace(replayable=replayable)
        recorded = SimpleNamespace(answer=answer, folder="", recipe="", job_status=status)
        monkeypatch.setattr("dlemu.contrib.record.run.record", lambda *_, recorded=recorded, **__: recorded)
        monkeypatch.setattr("dlemu.contrib.record.page.print_record", lambda *_, **__: None)
        assert CliRunner().invoke(command, ["--no-report", "--", "python", "train.py"]).exit_code == wanted


@pytest.mark.slow
def test_a_job_becomes_a_recipe_that_names_nobody_and_a_page(tmp_path: Path) -> None:
    data = tmp_path / "acme-secret" / "patients"
    data.mkdir(parents=True)
    for number in range(40):
        np.save(data / f"alice{number}.npy", np.zeros(5000 + 10 * number, np.uint8))
    before = {path: path.stat().st_mtime_ns for path in data.iterdir()}
    recipe, answer = tmp_path / "job.yaml", tmp_path / "answer"
    options = ["--no-replay", "--skip", "2", "--out", str(recipe), "--output", str(answer)]
    job = [sys.executable, JOB, str(data), "--epochs", "4", "--step", "0.01"]
    ended = dlemu("record", *options, "--", *job, cwd=tmp_path)
    assert ended.status == 4, ended.err
    said = " ".join(ended.out.split())
    assert "NOT VERIFIED it was not replayed" in said
    assert f"to verify it on a quiet host: dlemu record --skip 2 --rows {answer}/rows" in said
    assert "trained" in ended.err.splitlines(), "the job's own words are on the terminal"
    assert (answer / "report.html").stat().st_size > 10_000
    found = read_record(str(answer))
    assert found is not None
    assert (found.recording.batch_size, found.data and found.data.files) == (4, 40)
    text, page = recipe.read_text(), (answer / "report.html").read_text()
    assert not [word for word in ("acme", "secret", "patients", "alice", str(tmp_path)) if word in text + page]
    assert yaml.safe_load(text)["reader"]["batch_size"] == 4
    assert {path: path.stat().st_mtime_ns for path in data.iterdir()} == before
    kind = kind_of(str(answer))
    assert kind is not None
    assert kind.name == "record"
    again = dlemu("record", "--no-replay", "--rows", str(answer / "rows"), "--json", cwd=tmp_path)
    assert again.status == 4, again.err
    assert '"complete": true' in again.out
