"""A small, seeded share of `scripts/fuzz`: what is damaged at any interface is named, in time and in little memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from tests.datasets import make_dataset
from tests.fuzzing import ends, faults
from tests.fuzzing.ends import communicated
from tests.fuzzing.interfaces import interfaces
from tests.fuzzing.mutations import damaged_bytes
from tests.fuzzing.rounds import round_of

CASES, FORMAT_CASES, SCHEDULES = 40, 150, 300
"""Enough for a mistake that any damage shows; `scripts/fuzz` looks for the rare ones."""


@pytest.mark.parametrize("interface", interfaces())
def test_damage_is_named_and_nothing_else_happens(interface: str, tmp_path: Path) -> None:
    cases = SCHEDULES if interface == "schedules" else FORMAT_CASES if interface.startswith("format-") else CASES
    assert round_of(interface, 7, range(cases), tmp_path / "data") == []


def test_a_case_is_the_same_each_time() -> None:
    data = bytes(range(256)) * 9
    first, again = (damaged_bytes(data, random.Random("format-npz 1 5")) for _ in range(2))
    assert first == again != data


def test_what_goes_wrong_at_an_interface_is_reported_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fuzzer that finds nothing must be able to find something: an error, a hang, a crash."""

    def broken(folder: Path) -> object:
        def case(draw: random.Random) -> None:
            kind = draw.randrange(3)
            if kind == 0:
                raise KeyError("x")
            if kind == 1:
                time.sleep(60)
            os.abort()

        return case

    monkeypatch.setattr("tests.fuzzing.rounds.interfaces", lambda: {"broken": broken})
    monkeypatch.setattr("tests.fuzzing.rounds.MOST_SECONDS", 0.02)
    told = "".join("".join(round_of("broken", 1, range(n, n + 1), tmp_path)) for n in range(16))
    assert "broken seed 1 case" in told
    assert "KeyError: 'x'" in told
    assert "hangs" in told
    assert "the process ended with wait status" in told


FORKS = "import subprocess; subprocess.Popen(['sleep', '5'], stdout=-3, stderr=-3).wait()"


@pytest.mark.slow
def test_an_ending_that_leaves_somebody_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", FORKS]
    monkeypatch.setattr(ends, "made_sources", lambda folder, only: {"forks": lambda folder: command})
    monkeypatch.setattr(ends, "LEFT_SECONDS", 0)
    drawn = ((number, ends.draw(1, number, ["forks"])) for number in count())
    number = next(n for n, ending in drawn if 0 <= ending.victim < 0.5 and 0.2 < ending.share < 0.6)
    assert ends.draw(1, number, ["forks"]) == ends.draw(1, number, ["forks"])
    (found,) = ends.endings_of(1, range(number, number + 1), tmp_path)
    assert f"ends seed 1 case {number}: forks at 0." in found
    assert "left: " in found


HARMFUL = """
import os, subprocess, sys
subprocess.Popen(["sleep", "60"], stdout=-3, stderr=-3)
os.remove("../beside/notes.txt")
print("Traceback (most recent call last)")
sys.exit(99)
"""


def faults_with(monkeypatch: pytest.MonkeyPatch, script: str) -> range:
    """Have the campaign of odd surroundings run a script of Python's; return a case in which the script is reached."""

    def sources(folder: Path, only: Sequence[str]) -> dict[str, ends.Command]:
        (folder / "sources").mkdir(parents=True)
        return {"script": lambda _: [sys.executable, "-c", script]}

    monkeypatch.setattr(faults, "made_sources", sources)
    monkeypatch.setattr(faults, "LEFT_SECONDS", 0)
    number = next(n for n in count() if faults.draw(1, n, ["script"]).what == "narrow")
    return range(number, number + 1)


def test_what_goes_wrong_in_odd_surroundings_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = faults.faults_of(1, faults_with(monkeypatch, HARMFUL), tmp_path)
    assert "status 99: status 99; a traceback; left: " in found
    assert "beside/notes.txt is gone" in found


def test_time_that_others_had_the_cores_counts_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> bool:
        with subprocess.Popen(["sleep", "1.5"], text=True) as process:
            try:
                communicated(process)
            except subprocess.TimeoutExpired:
                return False
        return True

    monkeypatch.setattr(f"{communicated.__module__}.MOST_SECONDS", 0.2)
    for stalled, in_time in ((lambda: 0.0, False), (time.monotonic, True)):
        monkeypatch.setattr(f"{communicated.__module__}.stalled_seconds", stalled)
        assert ends() is in_time


def test_only_what_nobody_holds_is_left_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on the host have shared memory that comes and goes."""
    monkeypatch.setattr(ends, "LEFT_SECONDS", 0)
    held, left = (Path(f"/dev/shm/dlemu-test-{os.getpid()}-{word}") for word in ("held", "left"))
    before = ends.shared_memory()
    try:
        left.touch()
        with held.open("w"):
            found = [name for name in ends.left_in_memory(before) if f"dlemu-test-{os.getpid()}" in name]
    finally:
        held.unlink()
        left.unlink()
    assert found == [f"{left.name} in /dev/shm"]


def test_campaigns_side_by_side_leave_each_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends what its own case has left: of the same case of another one, nothing."""
    ready = tmp_path / "ready"
    case = faults_with(monkeypatch, f"import os, time; os.mkfifo({str(ready)!r}); open({str(ready)!r}).read()")
    other = os.fork()
    if not other:
        os._exit(len(faults.faults_of(1, case, tmp_path / "other")))
    while not ready.exists():
        time.sleep(0.01)
    case = faults_with(monkeypatch, "pass")
    assert faults.faults_of(1, case, tmp_path / "own") == []
    with open(ready, "w"):
        pass
    assert os.waitpid(other, 0)[1] == 0


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["npy", "npz"])
@pytest.mark.parametrize("engine", ["fast", "library"])
def test_nothing_in_a_dataset_is_unpickled(name: str, engine: Literal["fast", "library"], tmp_path: Path) -> None:
    spec = make_dataset(tmp_path / "data", format=name, num_files_train=1)
    found = inspect(spec)
    objects = np.array([Trap(tmp_path / "owned")], dtype=object)
    path = Path(found.train.path(0))
    if name == "npy":
        np.save(path, objects, allow_pickle=True)
    else:
        np.savez(path, x=objects, y=np.zeros(1))
    fetch = FetchSpec.for_dataset(found, found.train, engine=engine)
    with pytest.raises(DatasetError, match=str(path)):
        Fetcher(fetch).fetch([0], AlignedBuffer().view(fetch.slot_bytes(1)))
    assert not (tmp_path / "owned").exists()


def test_a_recorded_job_may_end_in_a_traceback_of_its_own() -> None:
    job, own = (
        f'words\nTraceback (most recent call last):\n  File "{path}", line 1, in <module>\nOSError: x\n'
        for path in (ends.JOB, "dlemu/contrib/record/run.py")
    )
    starting = "Python runtime state: core initialized\nTraceback (most recent call last):\n  File <frozen importlib>"
    said = ("", job, starting, own, job + own, starting + own)
    assert [ends.has_traceback(one) for one in said] == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    "between",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_an_error_that_led_to_the_job_s_own_is_the_job_s(between: str) -> None:
    """As where a signal meets it in an import of NumPy's."""
    begin = "Traceback (most recent call last):\n"
    led = f'{begin}  File "numpy/__init__.py"\nImportError\n\n{between}\n\n'
    assert not ends.has_traceback(f'{led}{begin}  File "{ends.JOB}", line 43\nImportError\n')
    assert ends.has_traceback(f'{led}{begin}  File "dlemu/api.py", line 43\nImportError\n')


def test_a_rehearsal_is_read_as_one() -> None:
    results = Path(__file__).parents[1] / "goldens" / "results"
    assert list(ends.unread(results / "rehearsal", whole=True)) == []
    assert list(ends.unread(results, whole=True)), "a folder of others is no result"
