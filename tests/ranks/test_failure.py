from __future__ import annotations

import errno
import os
import signal

from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import DlemuError, UserError
from dlemu.ranks import Failure, Interrupted, PeerLostError, first_failure
from dlemu.ranks.failure import RankEnd, describe

FAILURES = st.builds(
    Failure,
    rank=st.integers(0, 100),
    kind=st.text(),
    message=st.text(),
    status=st.integers(1, 255),
    at_ns=st.integers(0, 2**62),
    echo=st.booleans(),
    traceback=st.text(),
)


@given(st.lists(st.none() | FAILURES))
def test_the_cause_is_the_earliest_that_is_no_echo(failures: list[Failure | None]) -> None:
    cause = first_failure(RankEnd(rank=0, status=0, failure=failure) for failure in failures)
    found = [failure for failure in failures if failure is not None]
    own = [failure for failure in found if not failure.echo]
    assert (cause is None) == (not found)
    if cause is not None:
        assert cause.at_ns == min(failure.at_ns for failure in own or found)
        assert cause.echo == (not own)


def test_an_exception_is_described_by_what_is_known_of_it() -> None:
    assert describe(2, UserError("no such file")).message == "no such file"
    assert describe(2, MemoryError()).message.startswith("rank 2: no memory is left")
    broken = describe(2, OSError(errno.EIO, os.strerror(errno.EIO), "/mnt/kv"))
    assert (broken.status, broken.traceback) == (UserError.exit_status, "")
    assert broken.message.startswith("rank 2: /mnt/kv: Input/output error: the storage failed")
    assert describe(2, OSError(errno.EBADF, os.strerror(errno.EBADF))).status == DlemuError.exit_status
    assert describe(2, Interrupted(signal.SIGTERM)).message == "rank 2 was interrupted by SIGTERM"
    assert describe(2, SystemExit(7)).message == "rank 2 ended with exit status 7"
    odd = describe(2, ValueError("odd"))
    assert odd.message == "rank 2: ValueError: odd"
    assert odd.traceback.endswith("ValueError: odd\n")
    errors: list[BaseException] = [
        UserError(""),
        MemoryError(),
        Interrupted(signal.SIGTERM),
        SystemExit(7),
        ValueError(),
        PeerLostError(""),
    ]
    assert [describe(0, error).status for error in errors] == [2, 2, 143, 7, 3, 3]
    assert [describe(0, error).echo for error in errors] == [False] * 5 + [True]
