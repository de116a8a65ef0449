"""Ends commands by a signal to one of their processes, or all, at a random moment.

The moment is a share of the time that the command takes undisturbed, so that a case with the same seed hits nearly the
same moment on the same machine. Whatever is drawn, the command must end in time, and say why without a traceback. None
of its processes, and nothing in /dev/shm, may be left. The results folder must be readable, and files that a user has
put into folders of the command must be unchanged.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

import numpy as np
import psutil
from PIL import Image

import dlemu
from dlemu.metrics.verdict import COMPLETED
from tests.e2e.harness import CEILING, DLEMU, MPIRUN, PYTORCH, small_run, without
from tests.parts import of_parts
from tests.report.folders import write_run
from tests.shared_memory import left_in_memory, shared_memory
from tests.users_files import UsersFiles

MARK = "DLEMU_ENDS_CASE"
"""Variable in the environment of all processes of a case, by which orphans are found."""
MOST_SECONDS, MOST_SECONDS_IN_ALL = 150.0, 1200.0
"""Limits of a command, and of all: far above `timeout_seconds` and the time of any command, even on a busy machine."""
LEFT_SECONDS = 30.0
_TIMEOUT = "timeout_seconds=30"
_QUICK = (CEILING, "metric.scaling_seconds=0", _TIMEOUT)
_CACHED_RANK = ("ranks=1", "metric.cached=true")
_SIGNALS = (signal.SIGKILL,) * 4 + (signal.SIGSEGV, signal.SIGTERM)
_WHOLE = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""Signals that a terminal, a batch system or a container sends to all processes at once."""
_ENDED = {130, 137, 139, 143, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGSEGV}
"""Statuses of a command that, or a process of which, was ended by a signal; mpirun has other statuses."""
_MESSAGES = "dlemu: ", "Aborted", "failed: ", "the job ended ", "BAD TERMINATION", "[mpiexec@"
_JOB = "/tests/job.py"
"""Path of the training script that is recorded."""


@dataclass(frozen=True)
class Ending:
    """A case: the command, when and how it is ended, and which process."""

    command: str
    share: float
    """Moment, as a share of the time that the command takes undisturbed."""
    victim: float
    """Process, as a share of the command's processes in the order of their ids; below 0 for all at once."""
    signal: int


def draw(seed: int, number: int, commands: list[str]) -> Ending:
    """Return a random case; equal arguments give equal cases."""
    generator = random.Random(f"ends {seed} {number}")
    is_for_all = generator.random() < 0.2
    return Ending(
        command=generator.choice(commands),
        share=generator.uniform(0, 1.05),
        victim=-1 if is_for_all else generator.random(),
        signal=generator.choice(_WHOLE if is_for_all else _SIGNALS),
    )


Command = Callable[[Path], list[str]]
"""Returns a command line with this folder of results; names of other folders it makes begin with the folder's."""


def commands(sources: Path) -> dict[str, Command]:
    data = sources / "data"
    few = "ranks=2"

    def train(*changes: str) -> Command:
        return lambda folder: [DLEMU, "train", *small_run(folder, data, *_QUICK, *changes)]

    def without_ranks(folder: Path, *changes: str) -> list[str]:
        return without(small_run(folder, data, *_QUICK, *changes), "ranks")

    def saves(folder: Path) -> list[str]:
        there = f"checkpoint.checkpoint_folder={folder}-checkpoints"
        return ["workload=llama3_8b", "scale=laptop", there, few, _TIMEOUT]

    def datagen(folder: Path) -> list[str]:
        many = ("dataset.num_files_train=2000", few)
        return [DLEMU, "datagen", *small_run(folder, Path(f"{folder}-made"), *_QUICK, *many)]

    def probe(folder: Path) -> list[str]:
        small = ("--sizes", "4k", "--depths", "1,8", "--jobs", "2", "--seconds", "0.5", "--file-size", "16m")
        return [DLEMU, "probe", f"{folder.parent}", *small, "--output", str(folder)]

    def size(folder: Path) -> list[str]:
        one = without_ranks(folder, "reader.batch_size=1", "train.computation_time=0.5")
        return [DLEMU, "size", *one, "metric.cached=true", "--most", "1", "--trial-seconds", "4"]

    def together(folder: Path) -> list[str]:
        reads = without(without_ranks(folder, "metric.ceiling_seconds=0"), "output")
        jobs = shlex.join(["train", *reads, "ranks=1"]), shlex.join(["checkpoint", *saves(folder)])
        return [DLEMU, "together", *jobs, "--no-report", "--output", str(folder)]

    return {
        "train": train(PYTORCH),
        "threads": train("metric.ceiling_seconds=0"),
        "saving": train("workflow.checkpoint=true", "output.report=true", "train.epochs=1"),
        "mpirun": lambda folder: [MPIRUN, "-np", "3", DLEMU, "train", *small_run(folder, data, *_QUICK)],
        "checkpoint": lambda folder: [DLEMU, "checkpoint", *saves(folder), f"output.folder={folder}"],
        "datagen": datagen,
        "probe": probe,
        "sweep": lambda folder: [DLEMU, "sweep", *without_ranks(folder), "ranks=1,2"],
        "predict": lambda folder: [DLEMU, "predict", *small_run(folder, data, *_QUICK, *_CACHED_RANK)],
        "size": size,
        "together": together,
        **{name: partial(words, sources) for name, words in of_parts("COMMANDS").items()},
    }


def readings(sources: Path) -> dict[str, Command]:
    """Return what looks at data and results in a folder and writes a file or a page."""
    run, images = f"{sources}/run", ("dataset.source=folder", f"dataset.data_folder={sources}/images")
    return {
        "workloads": lambda at: [DLEMU, "workloads", "default", *images],
        "compare": lambda at: [DLEMU, "compare", run, run, "--output", str(at)],
        "report": lambda at: [DLEMU, "report", run, "--output", f"{at}.html"],
        **{name: partial(words, sources) for name, words in of_parts("READINGS").items()},
    }


def make_inputs(folder: Path, number: int, pixels: tuple[int, int]) -> None:
    subprocess.run([DLEMU, "datagen", *small_run(folder, folder / "data")], check=True, capture_output=True)
    for name in ("images", "arrays"):
        (folder / name).mkdir()
    for one in range(number):
        Image.effect_noise(pixels, 50 + one).save(folder / "images" / f"{one}.png")
        np.save(folder / "arrays" / f"{one}.npy", np.zeros(5000 + 10 * one, np.uint8))


def made_sources(folder: Path, only: Sequence[str] = ()) -> dict[str, Command]:
    """Make data and results in a folder; return the commands of these names, or all where none is named."""
    sources = folder / "sources"
    make_inputs(sources, 60, (300, 200))
    write_run(sources / "run")
    for name, whole in of_parts("SOURCES").items():
        shutil.copytree(whole, sources / name)
    there = commands(sources) | readings(sources)
    return {name: there[name] for name in only or there}


def started(command: list[str], mark: str, prepare: Callable[[], object] = lambda: None, **how: Any) -> Popen[str]:
    """Start a command of a case in a session of its own; `prepare` is called in its process."""

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()

    settings = os.environ | {MARK: mark} | how.pop("settings", {})
    return Popen(command, text=True, env=settings, start_new_session=True, preexec_fn=begin, **how)


class Aftermath:
    """What must be as it was before a case: files of a user's, and /dev/shm."""

    def __init__(self) -> None:
        self.theirs, self._memory = UsersFiles(), shared_memory()

    def wrong(self, mark: str, said: str) -> Iterator[str]:
        if has_traceback(said):
            yield "a traceback"
        yield from left(mark, LEFT_SECONDS)
        yield from self.theirs.changed()
        yield from (f"{name} in /dev/shm" for name in left_in_memory(self._memory, LEFT_SECONDS))


class Endings:
    def __init__(self, folder: Path, only: Sequence[str] = ()) -> None:
        self._folder = folder
        self._commands = made_sources(folder, only)
        self._seconds: dict[str, float] = {}

    def case(self, seed: int, number: int) -> str:
        ending = draw(seed, number, list(self._commands))
        folder = self._folder / f"case-{number}"
        try:
            return self._found(ending, folder)
        finally:
            self._remove(folder)

    def _found(self, ending: Ending, folder: Path) -> str:
        undisturbed, aftermath = self._undisturbed_seconds(ending.command, folder), Aftermath()
        process, mark = self._start(ending.command, folder)
        with contextlib.suppress(TimeoutExpired):
            process.wait(ending.share * undisturbed)
        for made in self._folder.glob(f"{folder.name}*"):
            aftermath.theirs.put_everywhere(made)
        hit = _hit(process, mark, ending)
        try:
            out, err = communicated(process)
        except TimeoutExpired:
            stuck = list(left(mark, 0))
            out, err = process.communicate()
            return f"{hit}: no end within {MOST_SECONDS:.0f} s: {stuck}\n{err[-2000:]}"
        wrong = [
            *_wrong_words(ending, process.returncode, out + err),
            *aftermath.wrong(mark, out + err),
            *unread(folder, whole=process.returncode in COMPLETED),
        ]
        return f"{hit}, status {process.returncode}: {'; '.join(wrong)}\n{out[-1000:]}{err[-3000:]}" if wrong else ""

    def _undisturbed_seconds(self, command: str, folder: Path) -> float:
        if command not in self._seconds:
            begun = time.monotonic()
            process, _ = self._start(command, folder)
            out, err = process.communicate()
            assert process.returncode in COMPLETED, out + err
            self._seconds[command] = time.monotonic() - begun
            self._remove(folder)
        return self._seconds[command]

    def _remove(self, folder: Path) -> None:
        for path in self._folder.glob(f"{folder.name}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _start(self, command: str, folder: Path) -> tuple[Popen[str], str]:
        mark = f"{os.getpid()}-{folder.name}-{time.monotonic_ns()}"
        return started(self._commands[command](folder), mark, stdout=PIPE, stderr=PIPE, cwd=self._folder), mark


def communicated(process: Popen[str]) -> tuple[str, str]:
    """Wait for the end and return what was said; a time in which somebody wanted a core and had none counts little."""
    begun, stalled = time.monotonic(), stalled_seconds()
    while True:
        try:
            return process.communicate(timeout=0.5)
        except TimeoutExpired:
            passed = time.monotonic() - begun
            if passed - (stalled_seconds() - stalled) > MOST_SECONDS or passed > MOST_SECONDS_IN_ALL:
                raise


def stalled_seconds() -> float:
    """Return how long processes of this host have wanted a core and had none; 0 where the kernel does not count it."""
    with contextlib.suppress(OSError):
        return float(Path("/proc/pressure/cpu").read_text().split()[4].removeprefix("total=")) / 1e6
    return 0.0


def endings_of(seed: int, cases: range, folder: Path, only: Sequence[str] = ()) -> list[str]:
    """Try cases in a folder, of some commands only where they are named; return what went wrong, a text for each."""
    endings = Endings(folder, only)
    found = [(number, endings.case(seed, number)) for number in cases]
    return [f"ends seed {seed} case {number}: {what}" for number, what in found if what]


def _wrong_words(ending: Ending, status: int, said: str) -> Iterator[str]:
    if status not in _ENDED | {*COMPLETED, 2, 3} and ending.command != "mpirun":
        yield f"status {status}"
    if status > 1 and status not in COMPLETED and not any(word in said for word in _MESSAGES):
        yield "no message"


def has_traceback(said: str) -> bool:
    """Say whether something of dlemu's ended in a traceback; one of a recorded job is the job's.

    So is that of an interpreter which a signal meets before it runs anybody's code.
    """
    # Errors that led to one another are one traceback, though only the last may name the job.
    together = re.sub(r"exception(?: occurred)?:\s+Traceback \(most recent call last\)", "exception", said)
    parts = together.split("Traceback (most recent call last)")
    starting = ("Python runtime state: core initialized", "Python runtime state: initialized")
    return any(_JOB not in one and not before.rstrip().endswith(starting) for before, one in pairwise(parts))


def unread(folder: Path, *, whole: bool) -> Iterator[str]:
    """Say what of the results can't be read: what is refused is refused by dlemu's own errors."""
    if not folder.exists():
        return
    readers = (read for mark, read in of_parts("RESULT_READERS").items() if (folder / mark).exists())
    try:
        next(readers, dlemu.load_result)(str(folder))
    except dlemu.DlemuError as error:
        if whole:
            yield f"no result: {error}"
    except Exception as error:
        yield f"reading its results: {type(error).__name__}: {error}"


def _marked(mark: str) -> list[psutil.Process]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if wanted in Path(f"/proc/{process.pid}/environ").read_bytes():
                found.append(process)
    return found


def _hit(process: Popen[str], mark: str, ending: Ending) -> str:
    name = signal.Signals(ending.signal).name
    if ending.victim < 0:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ending.signal)
        return f"{ending.command} at {ending.share:.2f}: {name} to all"
    there = sorted(_marked(mark), key=lambda one: one.pid)
    if not there:
        return f"{ending.command} at {ending.share:.2f}: it had ended"
    victim = there[int(ending.victim * len(there))]
    told = _told(victim)
    _send(victim, ending.signal)
    return f"{ending.command} at {ending.share:.2f}: {name} to {told}, one of {len(there)}"


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _told(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.name()} {' '.join(process.cmdline())[:60]}"
    return f"{process.pid}"


def left(mark: str, seconds: float) -> Iterator[str]:
    """Give a case's processes so long to end; name and end those that are left."""
    deadline = time.monotonic() + seconds
    left = _marked(mark)
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = _marked(mark)
    for process in left:
        yield f"left: {_told(process)}"
        _send(process, signal.SIGKILL)
