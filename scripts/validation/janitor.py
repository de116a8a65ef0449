"""Takes a drive apart when its maker ends, however it ends: a process of its own, started before there is anything.

    python -m validation.janitor TRACES     with TRACES as JSON; it begins when its stdin comes to an end

The maker holds the other end of that pipe. The kernel closes it with the maker, killed or not, so nothing stays behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from datagen.errors import DlemuError

PATIENCE_SECONDS = 10.0
"""How long a mount may stay busy before it is detached lazily."""


@dataclass(frozen=True, kw_only=True)
class Traces:
    """What a drive may leave behind, by name; each may or may not exist."""

    folder: str
    """Holds the mount point; empty in the end."""
    mount: str
    image: str = ""
    """File behind the loop device that another lies on."""
    cgroup: str = ""
    """Processes in it are killed: nothing else could be in there."""

    def remove(self) -> list[str]:
        """Remove all of it; return what could not be removed, as sentences."""
        troubles = []
        for step in (self._end_group, self._unmount, self._detach, self._unlink, self._remove_folder):
            try:
                step()
            except (OSError, subprocess.CalledProcessError) as error:
                troubles.append(f"{error}{_stderr(error)}")
        return troubles

    def _end_group(self) -> None:
        """Kill until the group is gone: a process that was being started may enter it as long as it is there."""
        if self.cgroup and not _in_time(lambda: _ended(self.cgroup)):
            os.rmdir(self.cgroup)

    def _unmount(self) -> None:
        if os.path.ismount(self.mount) and not _in_time(lambda: _ran("umount", self.mount)):
            _output("umount", "--lazy", self.mount)

    def _detach(self) -> None:
        if self.image and os.path.exists(self.image):
            for memory_device in _on(self.image):
                for device in (*_on(memory_device), memory_device):
                    _output("losetup", "--detach", device)

    def _unlink(self) -> None:
        if self.image:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.image)

    def _remove_folder(self) -> None:
        for folder in (self.mount, self.folder):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(folder)


class Janitor:
    """The maker's side."""

    def __init__(self, traces: Traces) -> None:
        end_of_pipe, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "validation.janitor", json.dumps(asdict(traces))],
                stdin=end_of_pipe,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # the terminal's Ctrl-C is for the maker
                env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__)))},
            )
        finally:
            os.close(end_of_pipe)

    def run(self, *argv: str) -> str:
        """Run a command that makes a part of the drive; the janitor waits for it even when its maker is gone."""
        return _output(*argv, pass_fds=(self._pipe,))

    def clean(self) -> list[str]:
        """Let it clean, and wait; return what could not be removed."""
        os.close(self._pipe)
        _, errors = self._process.communicate()
        return [f"the drive was not removed whole: {errors.strip()}"] if self._process.returncode else []


@contextlib.contextmanager
def cleaned(traces: Traces) -> Iterator[Janitor]:
    """Have a janitor for a block, who cleans in the end; raises DlemuError when a part could not be removed."""
    janitor, troubles = Janitor(traces), list[str]()
    try:
        yield janitor
    finally:
        troubles = janitor.clean()
    if troubles:
        raise DlemuError("; ".join(troubles))


def _ended(cgroup: str) -> bool:
    """Kill what is in the group and remove it; say whether it is gone."""
    try:
        with open(os.path.join(cgroup, "cgroup.procs")) as lines:
            processes = [int(line) for line in lines]
    except FileNotFoundError:
        return True
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.rmdir(cgroup)
    return not os.path.isdir(cgroup)


def _in_time(done: Callable[[], bool]) -> bool:
    """Try until it is done; say whether it was within the time given."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _on(file: str) -> list[str]:
    """Return the loop devices that lie on a file or device."""
    return _output("losetup", "--associated", file, "--output", "NAME", "--noheadings").split()


def _ran(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True).returncode == 0


def _output(*argv: str, pass_fds: tuple[int, ...] = ()) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, pass_fds=pass_fds).stdout


def _stderr(error: Exception) -> str:
    text = getattr(error, "stderr", None)
    return f" {text.strip()}" if text else ""


def main() -> int:
    """Wait for the maker's end, then clean."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    traces = Traces(**json.loads(sys.argv[1]))
    sys.stdin.read()
    troubles = traces.remove()
    print("; ".join(troubles), file=sys.stderr, end="")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
