"""What happens to a whole run when its supervisor is told to stop, or is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ranks.many_ranks import PATIENCE_SECONDS, lives, wait_until

PROGRAM = textwrap.dedent("""
    import json, os, signal, sys, time
    from pathlib import Path
    from dlemu.ranks import first_failure, run_ranks
    from dlemu.ranks import die_with_parent

    folder, stubborn, grace = Path(sys.argv[1]), sys.argv[2] == "stubborn", float(sys.argv[3])

    def main(comm):
        rank = os.getpid()
        if os.fork() == 0:
            die_with_parent(rank)
            (folder / str(os.getpid())).touch()
            time.sleep(600)
            os._exit(0)
        if stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        comm.all_reduce_max(0)
        (folder / str(os.getpid())).touch()
        time.sleep(600) if comm.rank == 0 else comm.all_reduce_max(1)
        return 0

    ends = run_ranks(3, main, timeout_seconds=600.0, grace_seconds=grace)
    cause = first_failure(ends)
    print(json.dumps([cause.kind, cause.message, cause.status, [end.status for end in ends]]))
    sys.exit(cause.status)
""")


@contextmanager
def supervisor(folder: Path, manner: str = "heeding", grace_seconds: float = 3.0) -> Iterator[subprocess.Popen[str]]:
    """Run the program until all six of its processes (three ranks, each with a worker) have noted their ids."""
    arguments = [sys.executable, "-c", PROGRAM, str(folder), manner, str(grace_seconds)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, preexec_fn=_hear_hangups) as process:
        assert wait_until(lambda: len(list(folder.iterdir())) == 6)
        try:
            yield process
        finally:
            process.kill()


def _hear_hangups() -> None:
    """Undo what a `nohup` before the tests has handed down."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def family(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        (signal.SIGINT, 130, "interrupted by Ctrl-C (SIGINT)"),
        (signal.SIGTERM, 143, "interrupted by SIGTERM"),
        (signal.SIGHUP, 129, "interrupted by SIGHUP"),
    ],
)
def test_a_stop_reaches_every_process(tmp_path: Path, number: int, status: int, message: str) -> None:
    with supervisor(tmp_path) as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == status
    assert json.loads(output) == ["Interrupted", message, status, [status] * 3]
    assert not any(lives(rank) for rank in family(tmp_path))


def test_a_second_ctrl_c_ends_the_grace(tmp_path: Path) -> None:
    with supervisor(tmp_path, "stubborn", grace_seconds=600.0) as process:
        process.send_signal(signal.SIGINT)
        assert wait_until(lambda: _has_caught_up(process))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert json.loads(output)[2] == 130


def _has_caught_up(process: subprocess.Popen[str]) -> bool:
    """Say whether no SIGINT is pending any more, so that a second one is not merged with the first."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("ShdPnd", "SigPnd"))]
    return not any(mask >> (signal.SIGINT - 1) & 1 for mask in pending)
