"""dlemu's exceptions, whose messages are for users. Only the command line prints them.

Every message says what was found, what was expected and what to do next.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

_STORAGE_FAILED = (errno.EIO, errno.ENXIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO)
_SEE_LOG = "see the kernel's log (dmesg) for why"
_READ_ADVICE = {
    errno.ENOENT: "it existed on the host of rank 0 when the run started: let all hosts see the dataset, or make the "
    "file again with `dlemu datagen`",
    # Some file systems open a file with O_DIRECT, but then refuse to read it
    errno.EINVAL: "the file system may refuse O_DIRECT: set reader.odirect=false",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give the user of this run permission to read the dataset"),
}
_MAKE_AGAIN = (
    ". Run `dlemu datagen verify` to find every damaged file; "
    "delete those and run `dlemu datagen` with the same settings to make them again"
)


class DlemuError(Exception):
    """A run that could not continue: a rank or worker died, a deadline passed."""

    exit_status = 3


class UserError(DlemuError):
    """Something the user can repair: a key, a value, a missing tool."""

    exit_status = 2


class DatasetError(UserError):
    """The dataset is missing, incomplete, foreign or damaged."""


class ServerError(UserError):
    """A server refused a request or did not answer: wrong address, credentials or permissions, or a broken server."""


class SpaceError(UserError):
    """No space is left (on disk, in memory, in the table of file descriptors), or results have no free folder."""


def no_such_file(path: str) -> FileNotFoundError:
    """Return the error that the operating system raises for a missing file or folder."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def no_space(error: OSError) -> str:
    """Return a phrase for an error for lack of space: the file system is full, or a quota is used up."""
    return "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"


def host_failure(error: BaseException) -> str:
    """Return the message for a failure of this host (no memory, no processes, a broken drive); '' for other errors."""
    if isinstance(error, OSError) and error.errno in _STORAGE_FAILED:
        return f"{error.filename or 'a file'}: {error.strerror}: the storage failed to access it; {_SEE_LOG}"
    if isinstance(error, MemoryError):
        return (
            "no memory is left for a process: free some, raise its limit (`ulimit -v`, a container's or job's), or use "
            "fewer ranks, workers or prefetches"
        )
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return (
            "no more processes or threads could be started: raise the limit (`ulimit -u`, a container's or job's limit "
            "of pids), or use fewer ranks or workers"
        )
    return ""


class DamagedError(Exception):
    """The error that a format raises for a damaged file. `read_failure` adds the path, which a format does not know."""

    def __init__(self, problem: str, offset: int | None = 0) -> None:
        super().__init__(problem)
        self.offset = offset  # where the file is damaged; None if there is no single offset


def damaged(path: str, problem: str, offset: int | None = None) -> DatasetError:
    """Return the error for a damaged file, with advice."""
    at = "" if offset is None else f"at offset {offset}: "
    return DatasetError(f"{path}: {at}{problem}{_MAKE_AGAIN}")


def message_without_advice(error: Exception) -> str:
    """Return the message of an error without the advice of `damaged`, which does not apply to a user's own files."""
    return str(error).partition(_MAKE_AGAIN)[0]


def damaged_own_file(error: DatasetError) -> DatasetError:
    """Return the error of `damaged` for a user's own file, which dlemu can't make again."""
    return DatasetError(f"{message_without_advice(error)}; the file is yours: restore it, or move it away")


def ended_early(path: str, missing_bytes: int, at: int) -> DatasetError:
    """Return the error for a file that ended at offset `at`, `missing_bytes` before the end of the requested range."""
    return damaged(path, f"the file ended {missing_bytes} bytes early", at)


def unreadable(path: str, error: OSError) -> DlemuError:
    """Return the error for a file that the system could not read: what happened, and what to do."""
    reason = f"{path}: {error.strerror or error}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return SpaceError(f"{reason}: raise the limit (ulimit -n), or use fewer reader.read_threads")
    return DatasetError(f"{reason}: {_READ_ADVICE.get(error.errno or 0, 'the storage failed to read it; ' + _SEE_LOG)}")


def read_failure(path: str, error: Exception) -> DlemuError:
    """Return the error for whatever a format or its library raised while reading a file: what is wrong, what to do.

    Libraries raise anything: SyntaxError, OverflowError, errors of their own, and OSError without a number.
    """
    if isinstance(error, OSError) and error.errno:
        return unreadable(path, error)
    if isinstance(error, DamagedError):
        return damaged(path, str(error), error.offset)
    if isinstance(error, MemoryError):
        return DatasetError(f"{path}: no memory for what it says it holds ({error}): restore it, or free some memory")
    return damaged(path, f"damaged, or not of this format ({type(error).__name__}: {str(error)[:200]})")


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise an exception of the `with` block as its `read_failure`; dlemu's own errors name the file already."""
    try:
        yield
    except DlemuError:
        raise
    except Exception as error:
        raise read_failure(path, error) from error
