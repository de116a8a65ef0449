"""Starts ranks and handles their failures. They are forked by this process, or started by a launcher, as this one is.

With a launcher (mpirun, srun, torchrun), rank 0 leads: it loads the settings, prepares, saves and reports.
"""

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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from datagen.atomic import write_text
from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.comm import Comm, detect_launcher
from dlemu.comm.failure import Failure, describe, first_failure, noting
from dlemu.comm.launch import run_ranks
from dlemu.config.schema import Workload
from dlemu.results.live import SAVING, going_on
from dlemu.runner.events import OnEvent, Refused, Warned
from dlemu.runner.launched import ECHO_SECONDS, RefusedError, ending_all, join, run_as_placeholder, start_seconds
from dlemu.runner.run_folder import Kept, failure_name

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.comm.guardian import Guardian
    from dlemu.comm.hosted import Host
    from dlemu.comm.launched_comm import LaunchedComm

T = TypeVar("T")
SaveFailed = Callable[[str], Kept | None]
"""Given a failure's message, saves what was measured before it; returns None if nothing was."""
CleanUp = Callable[[], None]
"""Removes what a failed run left on a host other than rank 0's."""


class RunFailedError(DlemuError):
    """A run with forked ranks failed, and all ranks have ended; the message is that of the first failure."""

    def __init__(self, failure: Failure, kept: Kept | None = None, also: str = "") -> None:
        super().__init__("\n".join(part for part in (failure.message, also, kept.sentence if kept else "") if part))
        self.failure, self.kept, self._also = failure, kept, also
        self.exit_status = failure.status
        if failure.traceback:
            self.add_note(failure.traceback.rstrip())

    def __reduce__(self) -> tuple[type[RunFailedError], tuple[Failure, Kept | None, str]]:
        return type(self), (self.failure, self.kept, self._also)


class RunUserError(RunFailedError, UserError):
    """A `RunFailedError` that the user can fix: a damaged file, a full disk."""


def _failed_run(failure: Failure, kept: Kept | None = None, also: str = "") -> RunFailedError:
    kind = RunUserError if failure.status == UserError.exit_status else RunFailedError
    return kind(failure, kept, also)


class Guarded(Protocol):
    """What is needed of a job to save its measurements if its run fails."""

    @property
    def workload(self) -> Workload: ...

    @property
    def folder(self) -> str: ...

    @property
    def live_folder(self) -> str: ...


class Ranks(Protocol):
    """The ranks of one command, as seen by a process that runs the whole command: it is not a placeholder."""

    leads: bool
    """Whether this process prepares, saves and reports: the parent of forked ranks, or rank 0 of a launcher."""
    count: int
    """Known once `configure` has returned."""

    def configure(self, load: Callable[[], Workload]) -> Workload:
        """Return the workload that the leading process loads; the others need neither Hydra nor its files."""

    def agree(self, make: Callable[[], T]) -> T:
        """Return in all processes what `make` returns in the leading one."""

    def on_each_host(self, check: Callable[[int], None]) -> None:
        """Call `check` once on each host, with the number of its ranks."""

    def run(self, main: Callable[[Comm], T]) -> T | None:
        """Run `main` on every rank to its end; return its result on rank 0, None in processes without rank 0.

        Raises what `main` raised, as RunFailedError if ranks are forked.
        """

    def guard(
        self, job: Guarded, save_failed: SaveFailed, clean_up: CleanUp = lambda: None
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context that saves the measurements if the run inside it fails."""


def with_ranks(
    words: Sequence[str], on_event: OnEvent, body: Callable[[Ranks], T], on_look: Callable[[], None] | None = None
) -> T | None:
    """Call `body` with the ranks that this process belongs to; return its result. `words` are the user's overrides.

    While forked ranks run, `on_look` is called every half second; what it raises ends them. Under a launcher, one
    process of each host runs all ranks there; the others are placeholders, in which `body` is not called and None is
    returned. The first failure is reported on its rank and ends all ranks. Raises UserError, PeerLostError.
    """
    if detect_launcher() == "none":
        return body(ForkedRanks(on_look=on_look))

    def report(message: str) -> None:
        on_event(Warned(message))

    if run_as_placeholder(words, report):
        return None
    from dlemu.comm.hosted import lead

    joined = join(start_seconds(words))
    with ending_all(joined.comm, report):
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
    """Ranks on this host, forked for each `run` after shared modules are imported. This process is not a rank."""

    leads = True

    def __init__(
        self,
        count: int = 0,
        timeout_seconds: float = Workload.timeout_seconds,
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self.count, self._timeout_seconds, self._on_look = count, timeout_seconds, on_look

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
                returned = main(comm)
                if comm.rank == 0:
                    pickle.dump(returned, result)
                    result.flush()
                return 0

            ends = run_ranks(self.count, rank, timeout_seconds=self._timeout_seconds, on_look=self._on_look)
            failure = first_failure(ends)
            if failure is not None:
                raise _failed_run(failure)
            result.seek(0)
            return cast(T, pickle.load(result))

    @contextlib.contextmanager
    def guard(self, job: Guarded, save_failed: SaveFailed, clean_up: CleanUp = lambda: None) -> Iterator[None]:
        try:
            with going_on(job.folder):
                yield
        except RunFailedError as error:
            try:
                kept = save_failed(error.failure.message)
            except DlemuError as second:
                failure = error.failure
                if type(second).__name__ == failure.kind == SpaceError.__name__ and job.folder in failure.message:
                    failure = replace(failure, message=str(second))  # of the same disk; this one names the way out
                raise _failed_run(failure, None, "" if str(second) == failure.message else str(second)) from None
            raise _failed_run(error.failure, kept) from None
        except BaseException as error:  # before the ranks began, or raised by `on_look`
            if (kept := save_failed(str(error))) is not None:
                error.add_note(kept.sentence)
            raise


class LaunchedRanks:
    """The ranks of a launcher, on one host or several; this process is one of them."""

    def __init__(self, comm: LaunchedComm, words: Sequence[str]) -> None:
        self._comm, self._words = comm, words
        self.leads, self.count = comm.rank == 0, comm.size
        self._guardian: Guardian | None = None
        self._note = ""
        """Added to a failure of the job that is guarded: the guardian saves it after the failure is reported."""

    def configure(self, load: Callable[[], Workload]) -> Workload:
        workload = self.agree(lambda: self._with_launched_ranks(load))
        self._comm.set_timeout(workload.timeout_seconds)
        return workload

    def _with_launched_ranks(self, load: Callable[[], Workload]) -> Workload:
        """Raise UserError if `ranks` on the command line differs from the launcher's, or versions of dlemu differ."""
        versions = self._comm.versions
        if len(set(versions)) > 1:
            found = ", ".join(f"{version} on {host}" for host, version in zip(self._comm.hosts, versions, strict=True))
            raise UserError(
                f"the hosts have different versions of dlemu ({found}): install the same one on all of them"
            )
        workload = load()
        given = any(re.match(r"(\+\+?)?(workload\.)?ranks=", word) for word in self._words)
        if given and workload.ranks != self.count:
            raise UserError(
                f"the launcher started {self.count} rank{'s' * (self.count != 1)}, but "
                f"ranks={workload.ranks} is given: leave it out, or "
                f"start that many (`mpirun -np {workload.ranks}`)"
            )
        return workload

    def agree(self, make: Callable[[], T]) -> T:
        """As in `Ranks`; a UserError in the leading process is raised in all processes, as RefusedError."""
        agreed = self._broadcast(_value_or_refusal(make) if self.leads else None)
        if isinstance(agreed, RefusedError):
            raise agreed
        return cast(T, agreed)

    def _broadcast(self, value: object) -> object:
        return self._comm.broadcast(value)

    def on_each_host(self, check: Callable[[int], None]) -> None:
        if self._comm.local_rank == 0:
            check(self._comm.local_size)

    def run(self, main: Callable[[Comm], T]) -> T | None:
        with noting(self._note):
            return main(self._comm)

    @contextlib.contextmanager
    def guard(self, job: Guarded, save_failed: SaveFailed, clean_up: CleanUp = lambda: None) -> Iterator[None]:
        if os.path.isdir(job.live_folder):  # else on another host
            self._note = f"kept, marked incomplete, in {job.folder}: what was measured before that, if anything"
        if self._comm.local_rank == 0:
            from dlemu.comm.guardian import watch

            others = self._comm.other_hosts
            on_loss = partial(_save_lost, job, save_failed, others) if self.leads else partial(_clean_up_lost, clean_up)
            self._guardian = watch(on_loss, job.workload.timeout_seconds)
        try:
            with going_on(job.folder) if self.leads else contextlib.nullcontext():
                yield
        except BaseException as error:
            failure = describe(self._comm.rank, error)
            write_failure(job.live_folder, failure)
            if not self._comm.launcher_ends_all:
                # Save first: when this process exits, the launcher may exit, and end the container that it runs in.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self._comm.leave(failure.status, failure.message)
                if self._guardian is not None:
                    self._guardian.save()
            raise
        if self._guardian is not None:
            self._guardian.release()


class HostedRanks(LaunchedRanks):
    """The ranks of a launcher, where this process, the first on its host, runs all ranks of the host."""

    def __init__(self, host: Host, words: Sequence[str]) -> None:
        super().__init__(host.comm, words)
        self._host = host
        self._live_folder = ""

    def _broadcast(self, value: object) -> object:
        return self._comm.broadcast_to_leaders(value)

    def run(self, main: Callable[[Comm], T]) -> T | None:
        with noting(self._note):
            return self._host.run(main, lambda failure: write_failure(self._live_folder, failure), self._note)

    @contextlib.contextmanager
    def guard(self, job: Guarded, save_failed: SaveFailed, clean_up: CleanUp = lambda: None) -> Iterator[None]:
        self._live_folder = job.live_folder
        with super().guard(job, save_failed, clean_up):
            yield


def _value_or_refusal(make: Callable[[], T]) -> T | RefusedError:
    try:
        return make()
    except UserError as error:
        return RefusedError(error)


def _save_lost(job: Guarded, save_failed: SaveFailed, other_hosts: str) -> None:
    """Save what the ranks had measured when rank 0 was lost. Runs in the guardian process, which has no console."""
    with going_on(job.folder, SAVING):  # else the same command, repeated at once, loses its live folder here
        time.sleep(ECHO_SECONDS)  # other ranks may still be writing their failures
        try:
            save_failed(cause(job.live_folder, other_hosts))
        except Exception:
            write_text(job.folder, "log.txt", f"the run was lost, and saving it failed:\n{traceback.format_exc()}")
            raise


def _clean_up_lost(clean_up: CleanUp) -> None:
    time.sleep(ECHO_SECONDS)  # ranks of this host may still be ending
    clean_up()


def write_failure(folder: str, failure: Failure) -> None:
    """Write a rank's failure into the run's live folder, if seen here: the launcher may kill the rank meanwhile."""
    if os.path.isdir(folder):
        record = json.dumps({"echo": failure.echo, "at": time.time(), "message": failure.message})
        with contextlib.suppress(SpaceError):
            write_text(folder, failure_name(failure.rank), record)


def cause(folder: str, other_hosts: str = "") -> str:
    """Return the message of the first failure that is not an echo; without one, that ranks were killed from outside."""
    failures = []
    for name in os.listdir(folder):
        if name.startswith("failure_") and name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as lines:
                record = json.load(lines)
            failures.append((record["echo"], record["at"], record["message"]))
    if failures:
        return str(min(failures)[2])
    died = f"a rank or {other_hosts}" if other_hosts else "a rank"
    return f"the ranks were killed from outside ({died} died and the launcher ended the others, or a time limit)"
