"""A process that removes a drive when its maker ends, even if killed; it is started before the drive is made.

    python -m validation.janitor TRACES     with TRACES as JSON; it removes them when its stdin ends

The maker holds the other end of that pipe. The kernel closes it when the maker ends, so nothing stays behind.
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
    """What a drive may leave behind; each of it may not exist."""

    folder: str
    """Folder with the mount point, empty in the end."""
    mount: str
    image: str = ""
    """File of the lower of the two loop devices."""
    cgroup: str = ""
    """Its processes are killed: all were started on the drive."""

    def remove(self) -> list[str]:
        """Remove all; return an error message for each part that could not be removed."""
        messages = []
        for step in (self._end_group, self._unmount, self._detach, self._unlink, self._remove_folder):
            try:
                step()
            except (OSError, subprocess.CalledProcessError) as error:
                messages.append(f"{error}{_stderr(error)}")
        return messages

    def _end_group(self) -> None:
        """Kill processes until the group is gone, because a new process may still enter it."""
        if self.cgroup and not _in_time(lambda: _kill_group(self.cgroup)):
            os.rmdir(self.cgroup)

    def _unmount(self) -> None:
        if os.path.ismount(self.mount) and not _in_time(lambda: _succeeds("umount", self.mount)):
            _output("umount", "--lazy", self.mount)

    def _detach(self) -> None:
        if self.image and os.path.exists(self.image):
            for memory_device in _loop_devices(self.image):
                for device in (*_loop_devices(memory_device), memory_device):
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
    """The janitor process, as its maker uses it."""

    def __init__(self, traces: Traces) -> None:
        end_of_pipe, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "validation.janitor", json.dumps(asdict(traces))],
                stdin=end_of_pipe,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # the terminal's Ctrl-C must only reach the maker
                env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__)))},
            )
        finally:
            os.close(end_of_pipe)

    def run(self, *argv: str) -> str:
        """Run a command that makes a part of the drive; the janitor waits for its end even if the maker is gone."""
        return _output(*argv, pass_fds=(self._pipe,))

    def clean(self) -> list[str]:
        """Let the janitor remove the drive, and wait; return an error message if it could not."""
        os.close(self._pipe)
        _, errors = self._process.communicate()
        return [f"the drive was not removed whole: {errors.strip()}"] if self._process.returncode else []


@contextlib.contextmanager
def cleaned(traces: Traces) -> Iterator[Janitor]:
    """Start a janitor, who cleans at the end of the block; raises DlemuError if a part could not be removed."""
    janitor, messages = Janitor(traces), list[str]()
    try:
        yield janitor
    finally:
        messages = janitor.clean()
    if messages:
        raise DlemuError("; ".join(messages))


def _kill_group(cgroup: str) -> bool:
    """Kill the processes of the group and try to remove it; return whether it is gone."""
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
    """Call `done` until it returns True; return whether that took at most PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _loop_devices(file: str) -> list[str]:
    """Return the loop devices of a file or device."""
    return _output("losetup", "--associated", file, "--output", "NAME", "--noheadings").split()


def _succeeds(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True).returncode == 0


def _output(*argv: str, pass_fds: tuple[int, ...] = ()) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, pass_fds=pass_fds).stdout


def _stderr(error: Exception) -> str:
    text = getattr(error, "stderr", None)
    return f" {text.strip()}" if text else ""


def main() -> int:
    """Wait for the end of the maker, then remove the drive."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    traces = Traces(**json.loads(sys.argv[1]))
    sys.stdin.read()
    messages = traces.remove()
    print("; ".join(messages), file=sys.stderr, end="")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
