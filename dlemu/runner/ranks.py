"""How ranks start and how they fail: forked by this process, or started by a launcher with this process as one."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from datagen.atomic import write_text
from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.comm import Comm, detect_launcher
from dlemu.comm.failure import Failure, describe, first_failure
from dlemu.comm.launch import run_ranks
from dlemu.config.schema import Workload
from dlemu.results.live import going_on
from dlemu.runner.events import OnEvent, RankFailed, Refused
from dlemu.runner.launched import ECHO_SECONDS, RefusedError, ending_all, join, run_as_placeholder, start_seconds
from dlemu.runner.run_folder import Kept, failure_name

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.comm.guardian import Guardian
    from dlemu.comm.hosted import Host
    from dlemu.comm.launched_comm import LaunchedComm

T = TypeVar("T")
SaveFailed = Callable[[str], Kept | None]
"""Saves what was measured up to a failure, whose message it is given; None when nothing was."""


class RunFailedError(DlemuError):
    """Forked ranks that failed, all of them gone; the text is that of the first failure."""

    def __init__(self, failure: Failure, kept: Kept | None = None, also: str = "") -> None:
        super().__init__("\n".join(part for part in (failure.message, also, kept.sentence if kept else "") if part))
        self.failure, self.kept, self._also = failure, kept, also
        self.exit_status = failure.status
        if failure.traceback:
            self.add_note(failure.traceback.rstrip())

    def __reduce__(self) -> tuple[type[RunFailedError], tuple[Failure, Kept | None, str]]:
        return type(self), (self.failure, self.kept, self._also)


class RunUserError(RunFailedError, UserError):
    """The same for a failure that the user can repair: a damaged file, a full disk."""


def _failed_run(failure: Failure, kept: Kept | None = None, also: str = "") -> RunFailedError:
    kind = RunUserError if failure.status == UserError.exit_status else RunFailedError
    return kind(failure, kept, also)


class Guarded(Protocol):
    """A job whose run leaves something behind when it fails."""

    @property
    def workload(self) -> Workload:
        """What is run."""
        ...

    @property
    def folder(self) -> str:
        """The run's folder."""
        ...

    @property
    def live_folder(self) -> str:
        """Where the ranks' logs lie while the run goes on."""
        ...


class Ranks(Protocol):
    """The ranks of one command, seen by a process that takes part in all of it."""

    leads: bool
    """This process prepares, saves and reports: the parent of forked ranks, or rank 0 of a launcher's."""
    count: int
    """Known once `configure` has returned."""

    def configure(self, load: Callable[[], Workload]) -> Workload:
        """Return the workload, loaded by the process that leads: the others need neither hydra nor the files."""
        ...

    def agree(self, make: Callable[[], T]) -> T:
        """Return what the process that leads makes."""
        ...

    def on_each_host(self, check: Callable[[int], None]) -> None:
        """Call `check` once on each host, with the number of its ranks."""
        ...

    def run(self, main: Callable[[Comm], T]) -> T | None:
        """Run `main` on every rank to its end; return what it returned on rank 0, None where another process has that.

        Raises what `main` raised, as RunFailedError where ranks are forked.
        """
        ...

    def guard(self, job: Guarded, save_failed: SaveFailed) -> contextlib.AbstractContextManager[None]:
        """Have what was measured saved when the run inside the context fails."""
        ...


def with_ranks(words: Sequence[str], on_event: OnEvent, body: Callable[[Ranks], T]) -> T | None:
    """Return what `body` makes of the ranks that this process was started for; `words` are the user's overrides.

    Under a launcher one process of each host runs all ranks there; the others, where `body` is not called and nothing
    is returned, count as theirs. The first failure is reported on its rank and ends all ranks.

    Raises UserError when there is no usable MPI library or torch, PeerLostError when a rank does not arrive in time.
    """
    if detect_launcher() == "none":
        return body(ForkedRanks())

    def tell(message: str) -> None:
        on_event(RankFailed(message))

    if run_as_placeholder(words, tell):
        return None
    from dlemu.comm.hosted import lead

    joined = join(start_seconds(words))
    with ending_all(joined.comm, tell):
        try:
            if not joined.hosted:
                return body(LaunchedRanks(joined.comm, words))
            with lead(joined.comm, ends_after=RefusedError) as host:
                return body(HostedRanks(host, words))
        except RefusedError as refused:
            if joined.comm.rank == 0:
                on_event(Refused(refused.error))
            raise


class ForkedRanks:
    """Ranks on this host, forked for each `run` once what they share is imported. This process is none of them."""

    leads = True

    def __init__(self, count: int = 0, timeout_seconds: float = Workload.timeout_seconds) -> None:
        self.count, self._timeout_seconds = count, timeout_seconds

    def configure(self, load: Callable[[], Workload]) -> Workload:
        workload = load()
        self.count, self._timeout_seconds = workload.ranks, workload.timeout_seconds
        return workload

    def agree(self, make: Callable[[], T]) -> T:
        return make()

    def on_each_host(self, check: Callable[[int], None]) -> None:
        check(self.count)

    def run(self, main: Callable[[Comm], T]) -> T | None:
        with os.fdopen(os.memfd_create("dlemu-result"), "w+b") as result:

            def rank(comm: Comm) -> int:
                made = main(comm)
                if comm.rank == 0:
                    pickle.dump(made, result)
                    result.flush()
                return 0

            failure = first_failure(run_ranks(self.count, rank, timeout_seconds=self._timeout_seconds))
            if failure is not None:
                raise _failed_run(failure)
            result.seek(0)
            return cast(T, pickle.load(result))

    @contextlib.contextmanager
    def guard(self, job: Guarded, save_failed: SaveFailed) -> Iterator[None]:
        try:
            with going_on(job.folder):
                yield
        except RunFailedError as error:
            try:
                kept, also = save_failed(error.failure.message), ""
            except DlemuError as second:
                kept, also = None, str(second)
            raise _failed_run(error.failure, kept, also) from None
        except BaseException as error:  # before the ranks began: nothing was measured
            save_failed(str(error))
            raise


class LaunchedRanks:
    """The ranks of a launcher, on one host or several; this process is one of them."""

    def __init__(self, comm: LaunchedComm, words: Sequence[str]) -> None:
        self._comm, self._words = comm, words
        self.leads, self.count = comm.rank == 0, comm.size
        self._guardian: Guardian | None = None

    def configure(self, load: Callable[[], Workload]) -> Workload:
        workload = self.agree(lambda: self._as_started(load()))
        self._comm.set_timeout(workload.timeout_seconds)
        return workload

    def _as_started(self, workload: Workload) -> Workload:
        """Refuse a count on the command line that is not the launcher's; one in a file is of another start."""
        given = any(re.match(r"(\+\+?)?(workload\.)?ranks=", word) for word in self._words)
        if given and workload.ranks != self.count:
            raise UserError(
                f"the launcher started {self.count} rank{'s' * (self.count != 1)}, but "
                f"ranks={workload.ranks} is given: leave it out, or "
                f"start as many (`mpirun -np {workload.ranks}`)"
            )
        return workload

    def agree(self, make: Callable[[], T]) -> T:
        """Return it on every rank; raises RefusedError on all of them for a UserError of the one that leads."""
        agreed = self._broadcast(_tried(make) if self.leads else None)
        if isinstance(agreed, RefusedError):
            raise agreed
        return cast(T, agreed)

    def _broadcast(self, value: object) -> object:
        return self._comm.broadcast(value)

    def on_each_host(self, check: Callable[[int], None]) -> None:
        if self._comm.local_rank == 0:
            check(self._comm.local_size)

    def run(self, main: Callable[[Comm], T]) -> T | None:
        return main(self._comm)

    @contextlib.contextmanager
    def guard(self, job: Guarded, save_failed: SaveFailed) -> Iterator[None]:
        if self.leads:
            from dlemu.comm.guardian import watch

            others = self._comm.other_hosts
            self._guardian = watch(lambda: _save_lost(job, save_failed, others), job.workload.timeout_seconds)
        try:
            with going_on(job.folder) if self.leads else contextlib.nullcontext():
                yield
        except BaseException as error:
            failure = describe(self._comm.rank, error)
            write_failure(job.live_folder, failure)
            if not self._comm.launcher_ends_all:
                # The launcher may end with this process, and a container with the launcher: save before.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self._comm.leave(failure.status, failure.message)
                if self._guardian is not None:
                    self._guardian.save()
            raise
        if self._guardian is not None:
            self._guardian.release()


class HostedRanks(LaunchedRanks):
    """The same where this process, the first of its host, runs the ranks of its host for the others."""

    def __init__(self, host: Host, words: Sequence[str]) -> None:
        super().__init__(host.comm, words)
        self._host = host
        self._live_folder = ""

    def _broadcast(self, value: object) -> object:
        return self._comm.broadcast_to_leaders(value)

    def run(self, main: Callable[[Comm], T]) -> T | None:
        return self._host.run(main, lambda failure: write_failure(self._live_folder, failure))

    @contextlib.contextmanager
    def guard(self, job: Guarded, save_failed: SaveFailed) -> Iterator[None]:
        self._live_folder = job.live_folder
        with super().guard(job, save_failed):
            yield


def _tried(make: Callable[[], T]) -> T | RefusedError:
    try:
        return make()
    except UserError as error:
        return RefusedError(error)


def _save_lost(job: Guarded, save_failed: SaveFailed, other_hosts: str) -> None:
    """Save what the ranks had measured when rank 0 was lost. Runs in the guardian, whose output nobody reads."""
    time.sleep(ECHO_SECONDS)  # other ranks may still be writing their last word
    try:
        save_failed(cause(job.live_folder, other_hosts))
    except Exception:
        write_text(job.folder, "log.txt", f"the run was lost, and saving it failed:\n{traceback.format_exc()}")
        raise


def write_failure(folder: str, failure: Failure) -> None:
    """Leave a rank's failure in the run's live folder: the launcher may kill it while it reports.

    Nothing is left on a host that can't see the folder. The file gets its name once it is complete.
    """
    if os.path.isdir(folder):
        word = json.dumps({"echo": failure.echo, "at": time.time(), "message": failure.message})
        with contextlib.suppress(SpaceError):
            write_text(folder, failure_name(failure.rank), word)


def cause(folder: str, other_hosts: str = "") -> str:
    """Return the first message that is no echo; without any, that the ranks were killed from outside.

    `other_hosts` is what to call those besides this one: a launcher that loses one kills all others.
    """
    words = []
    for name in os.listdir(folder):
        if name.startswith("failure_") and name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as lines:
                word = json.load(lines)
            words.append((word["echo"], word["at"], word["message"]))
    if words:
        return str(min(words)[2])
    died = f"a rank or {other_hosts}" if other_hosts else "a rank"
    return f"the ranks were killed from outside ({died} died and the launcher ended the others, or a time limit)"
