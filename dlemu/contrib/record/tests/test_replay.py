"""A real job and its replay, end to end: what is read, in which calls and batches, is the same; never how fast."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
import yaml

from dlemu.contrib.record.answer import read_record
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.rows import HOOK, ROWS, read_rows
from dlemu.contrib.record.tests.test_hook import HOOK as HOOK_FILE
from dlemu.contrib.record.tests.test_hook import JOB
from dlemu.jobs.training.result import read_run
from dlemu.metrics.verdict import COMPLETED
from tests.e2e.harness import dlemu

FILES, BATCH, EPOCHS, WORKERS, SKIP = 96, 4, 3, 1, 4
OF_TORCH = ("torch", "torchgen", "functorch", "numpy", "numpy.libs", "typing_extensions.py", "sympy", "mpmath")
ALSO_OF_TORCH = ("filelock", "networkx", "jinja2", "markupsafe", "fsspec", "setuptools")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("volumes"), np.random.default_rng(2)
    for number in range(FILES):
        np.save(folder / f"{number}.npy", random.integers(0, 255, 30_000 + 500 * number, dtype=np.uint8))
    return folder


@pytest.mark.slow
def test_a_replay_and_a_dataset_made_by_the_recipe_are_as_the_job_and_its_data(data: Path, tmp_path: Path) -> None:
    recipe, answer = tmp_path / "job.yaml", tmp_path / "answer"
    words = [str(data), "--epochs", str(EPOCHS), "--workers", str(WORKERS), "--step", "0.01", "--evaluate"]
    options = ["--skip", str(SKIP), "--out", str(recipe), "--output", str(answer), "--no-report"]
    ended = dlemu("record", *options, "--", sys.executable, JOB, *words, cwd=tmp_path)
    assert ended.status in COMPLETED, ended.err  # whether it keeps its pace is this host's affair
    found = read_record(str(answer))
    assert found is not None
    recording, dataset = found.recording, found.data
    assert dataset is not None
    sizes = [path.stat().st_size for path in data.iterdir()]
    assert recording.problems == ()
    assert (dataset.files, dataset.bytes, dataset.format) == (FILES, sum(sizes), "npy")

    tree = yaml.safe_load(recipe.read_text())
    assert (tree["reader"]["batch_size"], tree["reader"]["read_threads"]) == (BATCH, WORKERS)
    assert (tree["reader"]["prefetch_size"], tree["reader"]["sample_shuffle"]) == (2 * WORKERS, "seed")
    assert tree["dataset"]["num_files_train"] == FILES
    assert tree["dataset"]["record_length_bytes"] == pytest.approx(sum(sizes) / FILES, rel=0.01)
    quantiles = tree["dataset"]["record_length_bytes_quantiles"]
    assert (quantiles[0], quantiles[-1]) == pytest.approx((min(sizes), max(sizes)), rel=0.01)
    assert tree["train"]["synchronous"] is True
    assert tree["recorded"]["coverage_percent"] > 95

    replay = found.replays[-1]
    steps = read_run(str(answer / replay.folder / "results")).training
    taken = np.asarray(steps["samples"])
    lead = WORKERS * 2
    assert set(taken.tolist()) == {BATCH}
    assert len(taken) == recording.steps + SKIP + lead, "as many batches as counted, and those left out before them"
    rows = analyse_workers(answer / replay.folder / ROWS)
    assert rows["bytes"] == pytest.approx(recording.read_bytes_per_sample, rel=0.02)
    assert replay.calls_per_sample == pytest.approx(recording.calls_per_sample, rel=0.1)
    assert replay.engine == "matched"

    made = tmp_path / "made"  # where the data is not: a dataset of its sizes
    ended = dlemu("datagen", f"workload={recipe}", f"dataset.data_folder={made}", cwd=tmp_path)
    assert ended.status == 0, ended.err
    of_made = [path.stat().st_size for path in (made / "train").iterdir()]
    assert len(of_made) == FILES
    assert sum(of_made) == pytest.approx(sum(sizes), rel=0.05)
    assert np.quantile(of_made, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(sizes, [0.1, 0.5, 0.9]), rel=0.1)


def analyse_workers(folder: Path) -> dict[str, float]:
    """Return bytes a sample that the workers of a replay read."""
    fetches = [fetch for rows in read_rows(str(folder)) if not rows.passes for fetch in rows.fetches[1:]]
    return {"bytes": sum(fetch.read for fetch in fetches) / (BATCH * len(fetches))}


def foreign(folder: Path) -> Path:
    """Make an environment with PyTorch and nothing of dlemu or what that needs; return its Python."""
    venv.create(folder, with_pip=False)
    (own,) = folder.glob("lib/python*/site-packages")
    for name in (*OF_TORCH, *ALSO_OF_TORCH):
        for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            if os.path.exists(os.path.join(site, name)):
                (own / name).symlink_to(os.path.join(site, name))
                break
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
    found = read_record(str(tmp_path / "answer"))
    assert found is not None, ended.err
    assert found.recording.batch_size == BATCH

    beside = tmp_path / "beside"
    beside.mkdir()
    shutil.copy(HOOK_FILE, beside / "recorder.py")
    script = beside / "train.py"
    script.write_text("import recorder\n" + Path(JOB).read_text().replace("from __future__ import annotations\n", ""))
    subprocess.run([python, str(script), *words], cwd=beside, check=True, capture_output=True, timeout=240)
    copied = analyse(read_rows(str(beside / "dlemu-record")), SKIP)
    assert copied.batch_size == BATCH
    assert not (tmp_path / HOOK).exists()
