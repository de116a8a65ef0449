"""The hook in real jobs: what it sees, and that it neither breaks nor outlives them."""

from __future__ import annotations

import ast
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dlemu.contrib.record import rows as hook_maker
from dlemu.contrib.record.recording import analyse, files_of
from dlemu.contrib.record.rows import ENDING, VERSION, ProcessRows, read_rows, with_hook

HOOK = Path(hook_maker.__file__).with_name("recorder.py")
JOB = str(Path(__file__).with_name("job.py"))
FILES = 48


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    random = np.random.default_rng(1)
    for number in range(FILES):
        np.save(folder / f"{number}.npy", random.integers(0, 255, 4000 + 100 * number, dtype=np.uint8))
    return folder


def train(
    folder: Path, *words: str, before: Sequence[str] = (), status: int = 0, **window: Any
) -> tuple[list[ProcessRows], list[str]]:
    """Run the job with the hook; return its rows and what it said."""
    folder.mkdir(exist_ok=True)
    hook = with_hook(str(folder), str(folder / "rows"), **{"minutes": 10.0, **window})
    command, environment = [sys.executable, *before, JOB, *words], os.environ | hook
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == status, ended.stderr
    return (read_rows(str(folder / "rows")) if (folder / "rows").is_dir() else []), ended.stderr.splitlines()


def hook_module() -> Any:
    """Return the hook as a module that has installed nothing."""
    return SimpleNamespace(**runpy.run_path(str(HOOK), run_name="hook_under_test"))


def test_it_is_one_file_for_python_3_9_and_the_standard_library(tmp_path: Path) -> None:
    tree = ast.parse(HOOK.read_text(), feature_version=(3, 9))
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]
    module = hook_module()
    assert (module.ROWS_VERSION, module.ENDING) == (VERSION, ENDING)
    assert with_hook(str(tmp_path), "rows", minutes=1.0).keys() == {"PYTHONPATH", module.FOLDER, module.WINDOW}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "method", "epochs"),
    [(0, "fork", 2), (2, "fork", 2), (2, "spawn", 1)],  # each pass spawns workers that import torch again
)
def test_every_batch_of_a_real_job_is_seen(data: Path, tmp_path: Path, workers: int, method: str, epochs: int) -> None:
    saved = tmp_path / "weights.pt"
    words = ["--workers", str(workers), "--method", method, "--epochs", str(epochs), "--evaluate", "--save", str(saved)]
    words += ["--dynamo"] * (workers == 0)
    rows, said = train(tmp_path / "job", str(data), *words)
    assert said[-1] == "trained"
    recording = analyse(rows, 0)
    assert (recording.batch_size, recording.steps) == (4, epochs * FILES // 4), "without those of evaluations"
    of_loader = (recording.loading.workers, recording.loading.start_method, recording.loading.order)
    assert (*of_loader, recording.loading.samples) == (workers, method, "shuffled", FILES)
    assert recording.opens_per_sample == pytest.approx(1)
    whole = sum(path.stat().st_size for path in data.iterdir()) / FILES
    assert whole < recording.read_bytes_per_sample < whole + 8192, "np.load reads the header's block twice"
    assert (recording.calls_per_sample >= 2, recording.coverage_percent > 95) == (True, True)
    assert recording.saves is not None
    assert recording.saves.bytes == pytest.approx(saved.stat().st_size, rel=0.01)
    names = {name for name in files_of(rows, 0) if name.startswith(str(data))}
    assert names == {str(path) for path in data.iterdir()}


@pytest.mark.slow
def test_rows_of_a_killed_job_are_there_and_the_window_ends_the_recording_alone(data: Path, tmp_path: Path) -> None:
    words = ["--workers", "2", "--epochs", "3"]
    rows, _ = train(tmp_path / "killed", str(data), *words, "--kill-at", "9", status=-signal.SIGKILL)
    assert analyse(rows, 0).steps == 8
    for path in (tmp_path / "killed" / "rows").glob("*" + ENDING):
        path.write_bytes(path.read_bytes()[:-7])  # as the disk may have it after a crash of the host
    assert analyse(read_rows(str(tmp_path / "killed" / "rows")), 0).steps == 7
    rows, said = train(tmp_path / "window", str(data), *words, steps=4, skip=2)
    assert said[-1] == "trained"
    (trainer,) = [one for one in rows if one.passes]
    assert (len(trainer.batches), analyse(rows, 2).steps) == (7, 4), "the request of the last one ends a step"
    assert sum(fetch.n or 0 for one in rows for fetch in one.fetches) < FILES, "workers see that the window is over"


@pytest.mark.slow
def test_ranks_of_a_launcher_are_told_apart(data: Path, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rows, _ = train(tmp_path / "job", str(data), "--epochs", "2", before=launcher)
    assert [one.process.ranks for one in rows if one.passes] == [2, 2]
    recording = analyse(rows, 2)
    assert (recording.ranks, recording.loaders, recording.problems) == (2, 2, ())


@pytest.mark.slow
def test_samples_out_of_mapped_files_are_seen_and_those_in_memory_are_in_none(data: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("tokens.bin", "valid.bin"):
        np.arange(2048 * 64, dtype=np.uint16).tofile(tmp_path / "data" / name)
    rows, _ = train(tmp_path / "job", str(tmp_path / "data"), "--kind", "mapped", "--workers", "1", "--epochs", "2")
    recording = analyse(rows, 4)
    assert recording.mapped
    assert recording.read_bytes_per_sample == pytest.approx(4096, rel=0.05)
    # a library may look for a folder for temporary files meanwhile, by a file that is open for an instant
    names = {name for name in files_of(rows, 4) if name.startswith(str(tmp_path))}
    assert names == {str(tmp_path / "data" / "tokens.bin")}

    rows, _ = train(tmp_path / "each", str(data), "--kind", "storages", "--workers", "1", "--epochs", "2")
    recording = analyse(rows, 4)
    assert (recording.maps_files, recording.mapped, recording.opens_per_sample) == (True, False, 1.0)
    assert {name for name in files_of(rows, 4) if name.startswith(str(data))} == set(map(str, data.iterdir()))

    rows, _ = train(tmp_path / "loaded", str(data), "--kind", "loaded", "--workers", "1", "--epochs", "3")
    recording = analyse(rows, 4)
    assert (recording.mapped, recording.read_bytes_per_sample) == (False, 0)


@pytest.mark.slow
def test_an_error_in_the_recorder_is_one_warning_and_the_job_goes_on(data: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "rows").write_text("a file where the folder of rows should be")
    rows, said = train(tmp_path / "job", str(data))
    assert rows == []
    (warning,) = (line for line in said if line.startswith("dlemu record:"))
    assert "the job continues" in warning


def test_a_sitecustomize_that_was_there_still_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('the site')")
    hook = with_hook(str(tmp_path), str(tmp_path / "rows"), minutes=1.0)
    path = f"{hook['PYTHONPATH']}{os.pathsep}{tmp_path / 'site'}"
    code = "import sys; print('_dlemu_record' in sys.modules, 'dlemu' in sys.modules)"
    environment = os.environ | hook | {"PYTHONPATH": path}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["the site", "True False"]
    assert not (tmp_path / "rows").exists(), "a process that trains nothing leaves nothing"


class Device:
    """The part of torch.cuda that the hook uses, and the device's queue: work ends at `now` or later."""

    now = free = 0.0

    def query(self) -> bool:
        return self.free <= self.now

    def default_stream(self) -> Device:
        return self

    def Event(self, enable_timing: bool) -> Event:
        return Event(self)


class Event:
    """As torch.cuda.Event; whoever waited for one would hang."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self, stream: Device) -> None:
        self.at = max(stream.free, stream.now)

    def query(self) -> bool:
        return self.at <= self.device.now

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.mark.parametrize(("waits_for_device", "wait_ms"), [(False, 0.0), (True, 0.0), (True, 40.0)])
def test_device_times_come_later_and_are_the_devices_own(waits_for_device: bool, wait_ms: float) -> None:
    stream = Device()
    times, found, drained = hook_module().DeviceTimes(stream), [], []
    for batch in range(40):
        drained.append(times.end_step())
        stream.now += wait_ms  # the host waits for its batch, and the device goes on with what it has
        times.begin_step(batch)
        stream.now += 1.0  # the host only hands over
        stream.free = max(stream.free, stream.now) + 25.0
        if waits_for_device:
            stream.now = stream.free  # loss.item()
        found += times.completed()
    stream.now = stream.free
    found += times.completed()
    assert [batch for batch, _, _ in found] == list(range(len(found)))
    assert len(found) >= 30
    assert all(ms == pytest.approx(25.0, abs=1.1) for _, ms, _ in found[1:])
    assert all(waited == pytest.approx(wait_ms) for _, _, waited in found[1:])
    assert all(drained[1:]) == waits_for_device
