"""Commands in surroundings that are not as they should be: odd folders, streams, limits. A seed draws which.

Whatever was drawn, the command ends in time, with a status of those documented and a message without a traceback;
nobody is left, a user's files are all there, and what it calls a result can be read.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlemu.metrics.verdict import COMPLETED
from tests.fuzzing.ends import MOST_SECONDS, Aftermath, communicated, made_sources, started, unread
from tests.parts import of_parts
from tests.users_files import UsersFiles

_STATUSES = {*range(8), 120, 130, 141, 143}
"""Documented ones; 120 is Python's where stdout can't be flushed, 141 that of a pipe nobody reads."""


def _below_a_file(path: Path) -> None:
    """A path of which a part above is a file can't be had for the one that is given; a link to such a one can."""
    path.with_name(f"{path.name}-file").write_bytes(b"of the user")
    path.symlink_to(f"{path.name}-file/below")


ODD: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_bytes(b"of the user"),
    "fifo": os.mkfifo,
    "null": lambda path: path.symlink_to("/dev/null"),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "dangling": lambda path: path.symlink_to("nowhere/at/all"),
    "users": lambda path: UsersFiles().put(path),
    "below a file": _below_a_file,
}
"""What lies where a command wants a folder, or a file, of its own."""
PLACES = ("", "/live", "/point-01", "/trial-01-1", "/replay-1", "/rows", "/summary.json", "/log.txt", "/tree")
"""Where, behind the name of the results' folder."""
OWN_PLACES = {
    **dict.fromkeys(("checkpoint", "together"), "-checkpoints"),
    "datagen": "-made",
    "report": ".html",
    **of_parts("OWN_PLACES"),
}
"""Of commands that have another folder, or a file alone."""
INPUTS = {
    "data": ("dlemu.json", "train", "train/*0_of*", "train/*1_of*"),
    "images": ("", "1*.png"),
    "arrays": ("", "1*.npy"),
    "run": ("", "facts.json", "summary.json", "steps.parquet"),
    **of_parts("INPUTS"),
}
"""What of the dataset, the images, the results is odd."""
READ = {"workloads": "images", **dict.fromkeys(("compare", "report"), "run"), **of_parts("READ")}
"""What a command reads: others the dataset, if anything."""
STREAMS = ("out closed", "err closed", "all closed", "out full", "err full", "out is not read")
LIMITS: dict[str, tuple[int, int]] = {
    "files": (resource.RLIMIT_NOFILE, 24),
    "size": (resource.RLIMIT_FSIZE, 300_000),
    "memory": (resource.RLIMIT_AS, 700 << 20),
    "core": (resource.RLIMIT_CPU, 2),
}
SETTINGS: dict[str, dict[str, str]] = {
    "no TMPDIR": {"TMPDIR": "/nowhere/at/all"},
    "LANG=C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "narrow": {"COLUMNS": "20", "TERM": "dumb"},
    "no HOME": {"HOME": "/nowhere/at/all"},
    "of a launcher": {"PMI_RANK": "x", "PMI_SIZE": "-1"},
}


@dataclass(frozen=True)
class Fault:
    command: str
    kind: str
    what: str
    where: str = ""


def draw(seed: int, number: int, names: list[str]) -> Fault:
    random_of = random.Random(f"faults {seed} {number}")
    command = random_of.choice(names)
    match random_of.choice(("place", "place", "place", "input", "input", "stream", "limit", "setting", "cwd")):
        case "place":
            own = [OWN_PLACES[command]] * 4 if command in OWN_PLACES else []
            return Fault(command, "place", random_of.choice(list(ODD)), random_of.choice([*PLACES, *own]))
        case "input":
            read = READ.get(command, "data")
            where = f"{read}/{random_of.choice(INPUTS[read])}"
            return Fault(command, "input", random_of.choice([*ODD, "cut", "empty", "gone"]), where)
        case "stream":
            return Fault(command, "stream", random_of.choice(STREAMS))
        case "limit":
            return Fault(command, "limit", random_of.choice(list(LIMITS)))
        case "setting":
            return Fault(command, "setting", random_of.choice(list(SETTINGS)))
    return Fault(command, "cwd", random_of.choice(("removed", "read-only")))


class Faults:
    def __init__(self, folder: Path, only: Sequence[str] = ()) -> None:
        self._folder = folder
        self._commands = made_sources(folder, only)
        self._sources, self._whole = folder / "sources", folder / "whole"
        shutil.copytree(self._sources, self._whole)

    def case(self, seed: int, number: int) -> str:
        fault = draw(seed, number, list(self._commands))
        folder = self._folder / f"case-{number}" / "results"
        folder.parent.mkdir()
        try:
            return self._found(fault, folder)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)
            if fault.kind == "input":
                shutil.rmtree(self._sources)
                shutil.copytree(self._whole, self._sources)

    def _found(self, fault: Fault, folder: Path) -> str:
        if fault.kind == "place":
            place = Path(f"{folder}{fault.where}")
            place.parent.mkdir(exist_ok=True)
            ODD[fault.what](place)
        elif fault.kind == "input":
            self._damage(fault)
        aftermath = Aftermath()
        aftermath.theirs.put(folder.parent / "beside")
        mark = f"faults-{os.getpid()}-{folder.parent.name}"
        """Of this campaign's: those beside it have cases of the same number."""
        status, said, ended = self._run(fault, folder, mark)
        wrong = [
            *([] if ended else [f"no end within {MOST_SECONDS:.0f} s"]),
            *([] if status in _STATUSES or _ended_by_others(fault, status) else [f"status {status}"]),
            *(["no message"] if status in (2, 3) and fault.kind != "stream" and not _says_why(said) else []),
            *aftermath.wrong(mark, said),
            *(unread(folder, whole=status in COMPLETED) if folder.is_dir() and fault.kind != "place" else []),
        ]
        return f"{fault}, status {status}: {'; '.join(wrong)}\n{said[-3000:]}" if wrong else ""

    def _damage(self, fault: Fault) -> None:
        path = sorted(self._sources.glob(fault.where))[0]
        if fault.what in ("cut", "empty") and path.is_file():
            os.truncate(path, path.stat().st_size // 2 if fault.what == "cut" else 0)
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if fault.what in ODD:
            ODD[fault.what](path)

    def _run(self, fault: Fault, folder: Path, mark: str) -> tuple[int, str, bool]:
        """Return the status, what was said, and whether it came to its end in time."""
        said, cwd = folder.parent / "said", folder.parent / "cwd"
        cwd.mkdir()
        ended, settings = True, SETTINGS.get(fault.what, {})
        with said.open("a") as out:
            process = started(
                self._commands[fault.command](folder),
                mark,
                lambda: _prepare(fault, cwd),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                settings=settings,
            )
            try:
                communicated(process)
            except subprocess.TimeoutExpired:
                ended = False
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode, said.read_text(errors="replace"), ended


def _says_why(said: str) -> bool:
    """Say whether there is a message: the command's own, or that of a sweep's point below its table."""
    return "dlemu: " in said or " failed: " in said


def _ended_by_others(fault: Fault, status: int) -> bool:
    """Say whether the kernel ended it at a limit, or MPICH's mpirun, which ends what it can't pass on the output of.

    A process's SIGKILL or SIGXCPU makes MPICH's own status 9 or 24.
    """
    if fault.kind == "limit":
        by_kernel = (-signal.SIGXCPU, 128 + signal.SIGXCPU, 137, -signal.SIGKILL, 139)
        return status in (*by_kernel, *((signal.SIGKILL, signal.SIGXCPU) if fault.command == "mpirun" else ()))
    return fault.kind == "stream" and fault.command == "mpirun" and status == 255


def _prepare(fault: Fault, cwd: Path) -> None:
    """Make the surroundings of the command, in its process."""
    if fault.kind == "limit":
        number, limit = LIMITS[fault.what]
        resource.setrlimit(number, (limit, limit))
    if fault.kind == "cwd" and fault.what == "removed":
        cwd.rmdir()
    if fault.kind == "stream":
        name, _, how = fault.what.partition(" ")
        for number in {"out": (1,), "err": (2,), "all": (0, 1, 2)}[name]:
            _spoil(number, how)


def _spoil(number: int, how: str) -> None:
    if how == "closed":
        os.close(number)
    elif how == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, number)
        os.close(writing)


def faults_of(seed: int, cases: range, folder: Path, only: Sequence[str] = ()) -> list[str]:
    """Try cases in a folder, of some commands only where they are named; return what went wrong, a text for each."""
    faults = Faults(folder, only)
    return [f"faults seed {seed} case {number}: {what}" for number in cases if (what := faults.case(seed, number))]
