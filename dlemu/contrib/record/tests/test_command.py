"""`dlemu record` as a user types it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from datagen.errors import DlemuError, UserError
from dlemu.contrib.record.answer import RECORD
from dlemu.contrib.record.command import command
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.rows import HOOK, ROWS, read_rows
from dlemu.contrib.record.run import record
from dlemu.contrib.record.tests.test_hook import HOOK as HOOK_FILE
from dlemu.contrib.record.tests.test_hook import JOB
from dlemu.jobs.training.result import read_run
from dlemu.metrics.verdict import COMPLETED
from dlemu.results.kinds import read_result
from tests.e2e.harness import dlemu

FILES, BATCH, EPOCHS, WORKERS, SKIP = 96, 4, 3, 1, 4
OF_TORCH = ("torch", "torchgen", "functorch", "numpy", "numpy.libs", "typing_extensions.py", "sympy", "mpmath")
ALSO_OF_TORCH = ("filelock", "networkx", "jinja2", "markupsafe", "fsspec", "setuptools")


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


@pytest.mark.parametrize(("line", "ended"), [("exit 2", "with status 2"), ("kill -9 $$", "by signal 9")])
def test_a_job_that_fails_before_its_first_batch_has_failed(line: str, ended: str, tmp_path: Path) -> None:
    with pytest.raises(DlemuError, match=f"the job ended {ended} before it took a batch") as failure:
        record(("sh", "-c", line), folder=str(tmp_path / "answer"))
    assert failure.value.exit_status == 3, "as of a job that fails later"


def test_rows_of_which_no_recipe_can_be_made_are_kept(tmp_path: Path) -> None:
    row = '"k":"process","version":1,"pid":1,"ranks":1'
    line = f'mkdir "$DLEMU_RECORD"; echo \'{{{row}}}\' > "$DLEMU_RECORD/1.jsonl"'
    for says in ("0 batches of", "holds rows of a recorded job; set --output"):
        with pytest.raises(UserError, match=says):
            record(("sh", "-c", line), folder=str(tmp_path / "answer"))
    assert [path.name for path in (tmp_path / "answer" / ROWS).iterdir()] == ["1.jsonl"]


def test_a_job_that_failed_is_a_failure_however_well_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, replayable, wanted in ((7, True, 3), (-9, None, 3), (0, True, 0), (None, False, 1), (0, None, 4)):
        answer = SimpleNamespace(replayable=replayable)
        recorded = SimpleNamespace(answer=answer, folder="", recipe="", job_status=status)
        monkeypatch.setattr("dlemu.contrib.record.run.record", lambda *_, recorded=recorded, **__: recorded)
        monkeypatch.setattr("dlemu.contrib.record.page.print_record", lambda *_, **__: None)
        assert CliRunner().invoke(command, ["--no-report", "--", "python", "train.py"]).exit_code == wanted


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("top") / "acme-secret" / "patients", np.random.default_rng(2)
    folder.mkdir(parents=True)
    for number in range(FILES):
        np.save(folder / f"alice{number}.npy", random.integers(0, 255, 30_000 + 500 * number, dtype=np.uint8))
    return folder


@pytest.mark.slow
def test_a_job_becomes_a_recipe_that_names_nobody_and_a_replay_that_is_as_the_job(data: Path, tmp_path: Path) -> None:
    recipe, answer = tmp_path / "job.yaml", tmp_path / "answer"
    times = [path.stat().st_mtime_ns for path in data.iterdir()]
    words = [str(data), "--epochs", str(EPOCHS), "--workers", str(WORKERS), "--step", "0.01", "--evaluate"]
    options = ["--skip", str(SKIP), "--out", str(recipe), "--output", str(answer)]
    ended = dlemu("record", *options, "--", sys.executable, JOB, *words, cwd=tmp_path)
    assert ended.status in COMPLETED, ended.err  # whether it keeps its pace is this host's affair
    assert "trained" in ended.err.splitlines(), "the job's own words are on the terminal"
    found, sizes = read_result(str(answer)), [path.stat().st_size for path in data.iterdir()]
    recording, dataset, replay = found.recording, found.data, found.replays[-1]
    assert (dataset.files, dataset.bytes, dataset.format) == (FILES, sum(sizes), "npy")
    assert [path.stat().st_mtime_ns for path in data.iterdir()] == times

    text, page, numbers = recipe.read_text(), (answer / "report.html").read_text(), (answer / RECORD).read_text()
    names = ("acme", "secret", "patients", "alice", str(tmp_path))
    assert not [word for word in names if word in text + page + numbers]
    tree = yaml.safe_load(text)
    assert (tree["reader"]["batch_size"], tree["reader"]["read_threads"]) == (BATCH, WORKERS)
    assert (tree["reader"]["prefetch_size"], tree["reader"]["sample_shuffle"]) == (2 * WORKERS, "seed")
    quantiles = tree["dataset"]["record_length_bytes_quantiles"]
    assert (quantiles[0], quantiles[-1]) == pytest.approx((min(sizes), max(sizes)), rel=0.01)
    assert (tree["train"]["synchronous"], tree["recorded"]["coverage_percent"] > 95) == (True, True)

    taken = np.asarray(read_run(str(answer / replay.folder / "results")).training["samples"])
    assert set(taken.tolist()) == {BATCH}
    steps = analyse(read_rows(str(answer / ROWS)), SKIP).steps
    assert len(taken) == steps + SKIP + WORKERS * 2, "as many as counted, and those left out before them"
    rows = read_rows(str(answer / replay.folder / ROWS))
    fetches = [fetch for each in rows if not each.passes for fetch in each.fetches[1:]]
    read = sum(fetch.read for fetch in fetches) / (BATCH * len(fetches))
    assert read == pytest.approx(recording.read_bytes_per_sample, rel=0.02)
    assert replay.engine == "matched"
    assert replay.calls_per_sample == pytest.approx(recording.calls_per_sample, rel=0.1)

    made = tmp_path / "made"  # where the data is not: a dataset of its sizes
    ended = dlemu("datagen", f"workload={recipe}", f"dataset.data_folder={made}", cwd=tmp_path)
    assert ended.status == 0, ended.err
    of_made = [path.stat().st_size for path in (made / "train").iterdir()]
    assert [len(of_made), sum(of_made)] == pytest.approx([FILES, sum(sizes)], rel=0.05)
    assert np.quantile(of_made, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(sizes, [0.1, 0.5, 0.9]), rel=0.1)

    again = dlemu("record", "--no-replay", "--rows", str(answer / "rows"), "--json", cwd=tmp_path)
    assert (again.status, '"complete": true' in again.out) == (4, True), again.err


def foreign(folder: Path) -> Path:
    """Make an environment with PyTorch and nothing of dlemu or what that needs; return its Python."""
    venv.create(folder, with_pip=False)
    (own,) = folder.glob("lib/python*/site-packages")
    for path in (Path(np.__file__).parents[1] / name for name in (*OF_TORCH, *ALSO_OF_TORCH)):
        if path.exists():
            (own / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_job_in_an_environment_without_dlemu_is_recorded(data: Path, tmp_path: Path) -> None:
    """By the hook on PYTHONPATH, and by the one file copied beside the script where the environment is dropped."""
    python = str(foreign(tmp_path / "env"))
    probe = subprocess.run([python, "-c", "import dlemu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'dlemu'" in probe.stderr
    words = [str(data), "--epochs", "2", "--workers", "1"]
    options = ["--no-replay", "--no-report", "--skip", str(SKIP), "--output", str(tmp_path / "answer")]
    ended = dlemu("record", *options, "--", python, JOB, *words, cwd=tmp_path)
    assert ended.status == 4, ended.err
    assert yaml.safe_load((tmp_path / "answer" / "job.yaml").read_text())["reader"]["batch_size"] == BATCH

    beside = tmp_path / "beside"
    beside.mkdir()
    shutil.copy(HOOK_FILE, beside / "recorder.py")
    script = beside / "train.py"
    script.write_text("import recorder\n" + Path(JOB).read_text().replace("from __future__ import annotations\n", ""))
    subprocess.run([python, str(script), *words], cwd=beside, check=True, capture_output=True, timeout=240)
    assert analyse(read_rows(str(beside / "dlemu-record")), SKIP).batch_size == BATCH
    assert not (tmp_path / HOOK).exists()
