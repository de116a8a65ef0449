"""Starts the ranks of a command and handles their failures.

Without a launcher, this process forks all ranks. With one (mpirun, srun, torchrun), the first process of each host is
its leader and forks the host's ranks. Rank 0's leader also loads the settings, prepares, saves and reports.

A rank's failure passes through three stages: `Ranks.run` raises it as RunFailedError, `Ranks.guard` saves what was
measured, and, with a launcher, `lead` reports it and ends the launcher's processes.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.config.overrides import take_word
from dlemu.config.schema import Workload
from dlemu.ranks import Comm, detect_launcher
from dlemu.ranks.failure import Failure, describe, first_failure
from dlemu.ranks.launch import run_ranks
from dlemu.results.live import mark_in_progress
from dlemu.results.wording import count
from dlemu.runner.events import OnEvent, Warned
from dlemu.runner.launched import join_timeout_seconds
from dlemu.runner.run_folder import Kept

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.ranks.comm import HostRanks
    from dlemu.ranks.host import Host

T = TypeVar("T")
OnTick = Callable[[], object]  # called every half second while ranks run; an exception from it ends them
SaveAfterFailure = Callable[[str], Kept | None]  # takes the failure's message; saves what was measured, if anything


class RunFailedError(DlemuError):
    """A run failed, and all ranks of this host have ended. The message is that of the first failure."""

    failure: Failure
    kept: Kept | None = None
    """The measurements that were saved, if any."""


class RunUserError(RunFailedError, UserError):
    """A `RunFailedError` whose cause the user can fix, such as a damaged file or a full disk."""


def failed_run(failure: Failure, kept: Kept | None = None) -> RunFailedError:
    """Return the error for a failed run; `kept` describes the measurements that were saved."""
    error_type = RunUserError if failure.status == UserError.exit_status else RunFailedError
    error = error_type(f"{failure.message}\n{kept.sentence}" if kept else failure.message)
    error.failure = failure
    error.kept = kept
    error.exit_status = failure.status
    if failure.traceback:
        error.add_note(failure.traceback.rstrip())
    return error


class RefusedError(UserError):
    """A UserError of rank 0's leader before the ranks start. All leaders raise it, so that they exit together."""


@dataclass
class Ranks:
    """The ranks of one command. This process is not a rank itself: each `run` forks all ranks anew.

    With a launcher, this process is the leader of its host, and all leaders must call the same methods.
    """

    count: int = 0
    timeout_seconds: float = Workload.timeout_seconds
    on_tick: OnTick = lambda: None
    host: Host | None = None  # set with a launcher, which also determines `count`
    overrides: Sequence[str] = ()  # the user's

    def __post_init__(self) -> None:
        self.leads = self.host is None or self.host.node == 0  # whether this process prepares, saves and reports
        if self.host is not None:
            self.count = self.host.ranks.size

    def configure(self, load: Callable[[], Workload]) -> Workload:
        """Return the workload in all leaders. Rank 0's host loads it: the others need neither Hydra nor its files."""
        workload = self.compute_once(lambda: self._checked(load()))
        if self.host is None:
            self.count = workload.ranks
        else:
            self.host.set_timeout(workload.timeout_seconds)
        self.timeout_seconds = workload.timeout_seconds
        return replace(workload, ranks=self.count)  # as it is saved: a run with these settings has as many

    def _checked(self, workload: Workload) -> Workload:
        """Return the workload; raises UserError if its `ranks` contradicts the launcher, or hosts' versions differ."""
        host = self.host
        if host is None:
            return workload
        if len(set(host.versions)) > 1:
            versions = ", ".join(map(" on ".join, zip(host.versions, host.ranks.hosts, strict=True)))
            raise UserError(f"the hosts have different versions of dlemu ({versions}): install the same one on all")
        if take_word(self.overrides, "ranks")[0] and workload.ranks != self.count:
            raise UserError(
                f"the launcher started {count(self.count, 'rank')}, but ranks={workload.ranks} is given: leave it out, "
                f"or start that many (`mpirun -np {workload.ranks}`)"
            )
        return workload

    def compute_once(self, compute: Callable[[], T]) -> T:
        """Call `compute` on rank 0's host and return its result in all leaders; its UserError becomes RefusedError."""
        if self.host is None:
            return compute()
        result: T | None = None
        refusal: str | None = None  # message of a UserError
        if self.leads:
            try:
                result = compute()
            except UserError as error:
                refusal = str(error)
        result, refusal = self.host.broadcast((result, refusal))
        if refusal is not None:
            raise RefusedError(refusal)
        return cast(T, result)

    @property
    def local_count(self) -> int:
        """Number of ranks on this host."""
        return self.count if self.host is None else len(self.host.ranks.members)

    def run(self, main: Callable[[Comm], T], timeout_seconds: float | None = None) -> T | None:
        """Run `main` on every rank to its end; return rank 0's result on its host, None on other hosts.

        Ranks wait for each other for at most `timeout_seconds`, by default the workload's. Raises RunFailedError with
        the first failure of a rank.
        """
        timeout_seconds = timeout_seconds or self.timeout_seconds
        forked: int | HostRanks = self.count
        if self.host is not None:
            self.host.set_timeout(timeout_seconds)
            forked = self.host.ranks
        ends = run_ranks(forked, main, timeout_seconds=timeout_seconds, on_tick=self.on_tick)
        failure = first_failure(ends)
        if failure is not None:
            if self.host is not None:
                self.host.statuses = {end.rank: end.status for end in ends}
            raise failed_run(failure)
        return cast(T, ends[0].result) if self.leads else None

    @contextlib.contextmanager
    def guard(self, folder: str, save: SaveAfterFailure, clean_up: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Context of the run in `folder`. After a failure, rank 0's leader saves what was measured; others clean up."""
        with mark_in_progress(folder) if self.leads else contextlib.nullcontext():
            try:
                yield
            except BaseException as error:
                if self.host is not None:
                    self.host.report_failure(_failure_of(self.host, error))
                if not self.leads:
                    clean_up()
                    raise
                if isinstance(error, RunFailedError):
                    raise _save_and_describe(error.failure, folder, save) from None
                kept = save(str(error))  # the error is from before the ranks began, or from `on_tick`
                if kept is not None:
                    error.add_note(kept.sentence)
                raise


def _save_and_describe(failure: Failure, folder: str, save: SaveAfterFailure) -> RunFailedError:
    """Save the measurements of a failed run and return the error to raise."""
    try:
        return failed_run(failure, save(failure.message))
    except DlemuError as error:
        # One full disk may have ended both the run and its saving. Then show only the error of saving, which says what
        # to do. The failure came from the rank as text, so only the folder in it tells whether that disk was full.
        both_full = isinstance(error, SpaceError) and failure.kind == SpaceError.__name__
        same_cause = (both_full and folder in failure.message) or str(error) == failure.message
        return failed_run(replace(failure, message=str(error) if same_cause else f"{failure.message}\n{error}"))


def with_ranks(
    overrides: Sequence[str], on_event: OnEvent, body: Callable[[Ranks], T], on_tick: OnTick = lambda: None
) -> T | None:
    """Return the result of `body`, called with the ranks that this process will start.

    With a launcher, only leaders call this: other processes wait in `run_as_placeholder`. The first failure is reported
    on its host by `lead`, and ends all ranks. Raises UserError, PeerLostError.
    """
    if detect_launcher() == "none":
        return body(Ranks(on_tick=on_tick))
    from dlemu.ranks.host import Host, join

    host = join(join_timeout_seconds(overrides))
    assert isinstance(host, Host)
    return lead(host, on_event, lambda: body(Ranks(on_tick=on_tick, host=host, overrides=overrides)))


def lead(host: Host, on_event: OnEvent, body: Callable[[], T]) -> T:
    """Call `body` in a leader, end the launcher's processes, and return the result of `body`.

    An exception is reported; it ends all ranks, and this process by SystemExit. A `RefusedError` reaches all leaders:
    rank 0's raises it again, and the others exit. If one ended the rest by force, the launcher would print messages.
    """
    try:
        result = body()
        host.close()
        return result
    except RefusedError as refused:
        host.close()
        if host.node == 0:
            raise
        raise SystemExit(refused.exit_status) from None
    except BaseException as error:
        failure = _failure_of(host, error)
        host.report_failure(failure)
        if report := _report(host, error, failure):
            on_event(Warned(f"{socket.gethostname()}: {report}" if host.node else report))
        host.end(failure.status)
        raise SystemExit(failure.status) from None


def _failure_of(host: Host, error: BaseException) -> Failure:
    """Return the failure that an error describes: that of a rank for a RunFailedError, else that of this leader."""
    return error.failure if isinstance(error, RunFailedError) else describe(host.ranks.members[0], error)


def _report(host: Host, error: BaseException, failure: Failure) -> str:
    """Return the message about a failure; only what was saved if another host prints the cause to the same output."""
    another_host_failed = host.launcher.remote_failure is not None or (failure.echo and host.node > 0)
    if host.launcher.ends_all and another_host_failed:
        return error.kept.sentence if isinstance(error, RunFailedError) and error.kept else ""
    if isinstance(error, RunFailedError) or not failure.traceback:
        return "\n".join([str(error) or failure.message, *getattr(error, "__notes__", ())])
    return failure.traceback.rstrip()  # includes the notes
