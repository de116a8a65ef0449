"""What ranks know before the configuration is read, and what outlives those that fail or a defect in a figure."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from datagen.errors import SpaceError, UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.result import TRAINING, read_run
from dlemu.ranks import Interrupted, PeerLostError
from dlemu.ranks.comm import HostRanks
from dlemu.ranks.failure import Failure, describe
from dlemu.runner.events import Event, NotSaved, ignore
from dlemu.runner.job import save
from dlemu.runner.ranks import Ranks, RunFailedError, RunUserError, failed_run, lead
from dlemu.runner.run_folder import Kept, check_run_folder
from tests.runs import make_job, make_log

KEPT = "kept, marked incomplete, in folder: 24 steps measured before that"


class Launched:
    def __init__(self, node: int, *, knows_cause: bool) -> None:
        self.node, self.did = node, ""
        self.launcher = SimpleNamespace(ends_all=True, remote_failure="another host failed" if knows_cause else None)
        self.ranks = HostRanks(node=node, members=[node])

    def close(self) -> None:
        self.did = "closed"

    def report_failure(self, failure: Failure) -> None:
        assert failure.message

    def end(self, status: int) -> None:
        self.did = f"ended with {status}"


def failed(message: str, kept: Kept | None = None) -> RunFailedError:
    return failed_run(Failure(rank=1, kind="Signal", message=message, status=137, at_ns=0), kept)


@pytest.mark.parametrize(
    ("node", "knows_cause", "error", "said", "status"),
    [
        (0, False, UserError("the disk is full"), "the disk is full", 2),
        (2, False, UserError("the disk is full"), "here: the disk is full", 2),
        (0, False, PeerLostError("host b ended"), "host b ended", 3),
        (2, False, PeerLostError("host b ended"), "", 3),
        (2, False, Interrupted(15), "here: .*interrupted by SIGTERM", 143),
        (0, False, ValueError("odd"), "Traceback .*ValueError: odd", 3),
        (0, False, failed("rank 1 was killed", Kept("folder", KEPT)), "rank 1 was killed\nkept, .*", 137),
        (0, True, failed("rank 1 was killed", Kept("folder", KEPT)), "kept, .*", 137),
        (1, True, failed("rank 1 was killed"), "", 137),
    ],
)
def test_a_host_that_fails_says_so_once_and_ends_all(
    node: int, knows_cause: bool, error: BaseException, said: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all outputs are one, a host that only lost another leaves it to that one, or to rank 0's host."""
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    host: Any = Launched(node, knows_cause=knows_cause)
    told: list[str] = []

    with pytest.raises(SystemExit) as ended:
        lead(host, lambda event: told.append(event.message), Mock(side_effect=error))  # type: ignore[union-attr]
    assert (ended.value.code, host.did) == (status, f"ended with {status}")
    assert re.fullmatch(said, "".join(told), re.DOTALL)


def test_a_failure_of_forked_ranks_says_what_was_kept() -> None:
    ranks = Ranks().guard(make_job().folder, lambda message: Kept("folder", KEPT))
    with pytest.raises(RunFailedError, match=rf"killed by SIGKILL(?s:.*)\n{KEPT}") as caught, ranks:
        raise failed("rank 1 was killed by SIGKILL")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.exit_status, copy.kept, str(copy)) == (137, Kept("folder", KEPT), str(caught.value))


@pytest.mark.parametrize("same_disk", [True, False])
def test_a_full_results_disk_is_told_once_with_the_way_out(same_disk: bool) -> None:
    job = make_job()
    path = f"{job.folder}/live/journal.json" if same_disk else "/mnt/checkpoints/step1"
    first = f"the disk is full: {path} could not be written; free some space"
    second = f"the disk is full: {job.folder}/config.yaml could not be written; once there is space, `dlemu report` ..."

    with pytest.raises(RunUserError) as caught, Ranks().guard(job.folder, Mock(side_effect=SpaceError(second))):
        raise failed_run(Failure(rank=0, kind="SpaceError", message=first, status=2, at_ns=0))
    assert str(caught.value) == (second if same_disk else f"{first}\n{second}")


def test_a_launched_run_is_saved_with_its_ranks_and_hosts_with_another_version_are_named() -> None:
    place, passed = HostRanks(hosts=("a", "b"), size=18), {"broadcast": lambda value: value, "set_timeout": ignore}
    host: Any = SimpleNamespace(node=0, ranks=place, versions=("0.2.0", "0.2.0"), **passed)
    assert Ranks(host=host).configure(Workload).ranks == 18
    host.versions = ("0.2.0", "0.1.0")
    with pytest.raises(UserError, match=r"different versions of dlemu \(0.2.0 on a, 0.1.0 on b\)"):
        Ranks(host=host).configure(Workload)


def test_a_defect_in_what_is_computed_leaves_the_measured_run(tmp_path: Path) -> None:
    job = make_job(folder=str(tmp_path))
    log = make_log(job)
    with pytest.raises(ZeroDivisionError):
        save(TRAINING, job, log, Mock(side_effect=ZeroDivisionError("in what exports it")))
    order = ["rank", "epoch", "step"]
    assert np.array_equal(np.sort(read_run(str(tmp_path)).rows, order=order), np.sort(log.rows, order=order))
    with pytest.raises(SpaceError, match="holds another result"):
        check_run_folder(str(tmp_path))


def test_a_disk_that_is_full_at_the_end_is_reported_once_with_the_way_to_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(folder=str(tmp_path))
    log = make_log(job)

    def save_again(failure: str) -> None:
        save(TRAINING, job, log, ignore, failure)

    monkeypatch.setattr("dlemu.runner.job.write_measured", Mock(side_effect=SpaceError("the disk is full")))
    events: list[Event] = []
    with pytest.raises(SpaceError) as first:
        save(TRAINING, job, log, events.append)
    assert [type(event) for event in events] == [NotSaved], "the result is printed nevertheless"
    said = f"the disk is full; once there is space, `dlemu report {tmp_path}` shows the result"
    assert str(first.value) == said
    with pytest.raises(RunFailedError) as ended, Ranks().guard(job.folder, save_again):
        raise failed_run(describe(0, first.value))
    assert str(ended.value) == said
