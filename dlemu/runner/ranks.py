"""Starts ranks and handles their failures: this process forks all ranks, or with a launcher those of its own host.

With a launcher (mpirun, srun, torchrun), the first process of rank 0's host leads: it loads the settings, prepares,
saves and reports.
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
from dlemu.runner.launched import start_seconds
from dlemu.runner.run_folder import Kept

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.ranks.comm import HostRanks
    from dlemu.ranks.host import Host

T = TypeVar("T")
OnLook = Callable[[], object]  # called every half second while ranks run; what it raises ends them
SaveFailed = Callable[[str], Kept | None]  # given a failure's message, saves what was measured before, if anything


class RunFailedError(DlemuError):
    """A run failed, and all ranks of this host have ended; the message is that of the first failure."""

    failure: Failure
    kept: Kept | None = None
    """What was saved of the run."""


class RunUserError(RunFailedError, UserError):
    """A `RunFailedError` that the user can fix: a damaged file, a full disk."""


def failed_run(failure: Failure, kept: Kept | None = None) -> RunFailedError:
    """Return the error of a failed run; `kept` is what was saved of it."""
    error_type = RunUserError if failure.status == UserError.exit_status else RunFailedError
    error = error_type(f"{failure.message}\n{kept.sentence}" if kept else failure.message)
    error.failure, error.kept, error.exit_status = failure, kept, failure.status
    if failure.traceback:
        error.add_note(failure.traceback.rstrip())
    return error


class RefusedError(UserError):
    """A UserError of rank 0's host before any rank began, raised by all leaders, so that they exit together."""


@dataclass
class Ranks:
    """The ranks of one command, forked for each `run` after shared modules are imported. This process is not a rank.

    With a launcher, this process is the leader of its host, and each method is called by all leaders.
    """

    count: int = 0
    timeout_seconds: float = Workload.timeout_seconds
    on_look: OnLook = lambda: None
    host: Host | None = None
    """With a launcher, which also sets the count."""
    words: Sequence[str] = ()
    """The user's overrides."""

    def __post_init__(self) -> None:
        self.leads = self.host is None or self.host.node == 0  # whether this process prepares, saves and reports
        if self.host is not None:
            self.count = self.host.ranks.size

    def configure(self, load: Callable[[], Workload]) -> Workload:
        """Return the workload that the leading process loads: other leaders need neither Hydra nor the user's files."""
        workload = self.agree(lambda: self._checked(load()))
        if self.host is None:
            self.count = workload.ranks
        else:
            self.host.set_timeout(workload.timeout_seconds)
        self.timeout_seconds = workload.timeout_seconds
        return workload

    def _checked(self, workload: Workload) -> Workload:
        """Raise UserError if `ranks` on the command line differs from the launcher's, or versions of dlemu differ."""
        host = self.host
        if host is None:
            return workload
        if len(set(host.versions)) > 1:
            versions = [f"{version} on {name}" for version, name in zip(host.versions, host.ranks.hosts, strict=True)]
            raise UserError(
                f"the hosts have different versions of dlemu ({', '.join(versions)}): install the same one on all of "
                "them"
            )
        if take_word(self.words, "ranks")[0] and workload.ranks != self.count:
            raise UserError(
                f"the launcher started {count(self.count, 'rank')}, but ranks={workload.ranks} is given: leave it out, "
                f"or start that many (`mpirun -np {workload.ranks}`)"
            )
        return workload

    def agree(self, make: Callable[[], T]) -> T:
        """Return in all leaders what `make` returns in the leading one; its UserError is raised as RefusedError."""
        if self.host is None:
            return make()
        answer: tuple[T | None, str | None] = (None, None)
        if self.leads:
            try:
                answer = make(), None
            except UserError as error:
                answer = None, str(error)
        value, refusal = self.host.broadcast(answer)
        if refusal is not None:
            raise RefusedError(refusal)
        return cast(T, value)

    @property
    def local_count(self) -> int:
        """Number of ranks on this host."""
        return self.count if self.host is None else len(self.host.ranks.members)

    def run(self, main: Callable[[Comm], T], timeout_seconds: float | None = None) -> T | None:
        """Run `main` on every rank to its end; return rank 0's result on its host, None on others.

        Ranks wait for each other for `timeout_seconds`, by default the workload's. Raises RunFailedError with the first
        failure of a rank.
        """
        timeout_seconds = timeout_seconds or self.timeout_seconds
        group: int | HostRanks = self.count
        if self.host is not None:
            self.host.set_timeout(timeout_seconds)
            group = self.host.ranks
        ends = run_ranks(group, main, timeout_seconds=timeout_seconds, on_look=self.on_look)
        failure = first_failure(ends)
        if failure is not None:
            if self.host is not None:
                self.host.statuses = {end.rank: end.status for end in ends}
            raise failed_run(failure)
        return cast(T, ends[0].result) if self.leads else None

    @contextlib.contextmanager
    def guard(
        self, folder: str, save_failed: SaveFailed, clean_up: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Save what the run with this folder measured if it fails; on hosts other than rank 0's, clean up."""
        with mark_in_progress(folder) if self.leads else contextlib.nullcontext():
            try:
                yield
            except BaseException as error:
                if self.host is not None:
                    self.host.leave(_failure_of(self.host, error))
                if not self.leads:
                    clean_up()
                    raise
                if isinstance(error, RunFailedError):
                    raise _saved(error.failure, folder, save_failed) from None
                kept = save_failed(str(error))  # of an error before the ranks began, or raised by `on_look`
                if kept is not None:
                    error.add_note(kept.sentence)
                raise


def _saved(failure: Failure, folder: str, save_failed: SaveFailed) -> RunFailedError:
    """Save what a failed run measured, and return the error to raise."""
    try:
        return failed_run(failure, save_failed(failure.message))
    except DlemuError as error:
        # The run and its saving may fail for the same full disk: then the second message alone, which says what to do.
        is_same_disk = type(error).__name__ == failure.kind == SpaceError.__name__ and folder in failure.message
        is_one = is_same_disk or str(error) == failure.message
        return failed_run(replace(failure, message=str(error) if is_one else f"{failure.message}\n{error}"))


def with_ranks(
    words: Sequence[str], on_event: OnEvent, body: Callable[[Ranks], T], on_look: OnLook = lambda: None
) -> T | None:
    """Call `body` with the ranks that this process starts; return its result. `words` are the user's overrides.

    Under a launcher, one process of each host, for which `run_as_placeholder` is false, runs all ranks there. The first
    failure is reported on its host and ends all ranks. Raises UserError, PeerLostError.
    """
    if detect_launcher() == "none":
        return body(Ranks(on_look=on_look))
    from dlemu.ranks.host import Host, join

    host = join(start_seconds(words))
    assert isinstance(host, Host)
    return lead(host, on_event, lambda: body(Ranks(on_look=on_look, host=host, words=words)))


def lead(host: Host, on_event: OnEvent, body: Callable[[], T]) -> T:
    """Return what `body` returns, and end the launcher's processes with this one.

    An exception is reported and ends all ranks, and this process by SystemExit. A `RefusedError` ends no process by
    force, as the launcher would then print messages of its own: rank 0's host raises the UserError, others exit.
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
        host.leave(failure)
        if report := _report(host, error, failure):
            on_event(Warned(f"{socket.gethostname()}: {report}" if host.node else report))
        host.end(failure.status)
        raise SystemExit(failure.status) from None


def _failure_of(host: Host, error: BaseException) -> Failure:
    """Return why a host fails: for a RunFailedError the failure of its rank."""
    failure = getattr(error, "failure", None)
    return failure if isinstance(failure, Failure) else describe(host.ranks.members[0], error)


def _report(host: Host, error: BaseException, failure: Failure) -> str:
    """Return what to report of a failure: only what was kept, if another host reports the cause in the same output."""
    another_host_failed = host.launched.lost is not None or (failure.echo and host.node > 0)
    if host.launched.ends_all and another_host_failed:
        kept = getattr(error, "kept", None)
        return kept.sentence if kept else ""
    if hasattr(error, "failure") or not failure.traceback:
        return "\n".join([str(error) or failure.message, *getattr(error, "__notes__", ())])
    return failure.traceback.rstrip()  # it has the notes
