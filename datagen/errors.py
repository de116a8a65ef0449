"""dlemu's exceptions. Their messages are written for users.

Every message says what was found, what was expected and what to do next. Only the command line prints them.

    DlemuError            exit status 3   a run that could not continue (a rank or worker died, a deadline passed)
    +- UserError          exit status 2   something the user can repair: a key, a value, a missing tool
       +- DatasetError    exit status 2   the dataset is missing, incomplete, foreign or damaged
       +- SpaceError      exit status 2   no space left: disk, memory, file descriptors
       +- ServerError     exit status 2   a server that refuses or does not answer: whether files exist is unknown
"""

import errno
import os

_STORAGE_FAILED = (errno.EIO, errno.ENXIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO)


class DlemuError(Exception):
    """A run that could not continue."""

    exit_status = 3


class UserError(DlemuError):
    """Something the user can repair."""

    exit_status = 2


class DatasetError(UserError):
    """The dataset is missing, incomplete, foreign or damaged."""


class ServerError(UserError):
    """A server refused a request or did not answer: wrong address, credentials or permissions, or a broken server."""


class SpaceError(UserError):
    """No space is left: on disk, in memory, in the table of file descriptors."""


def no_such_file(path: str) -> FileNotFoundError:
    """Return the error that the system raises for a missing file or folder."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def no_space(error: OSError) -> str:
    """Return which limit an error for lack of space means: the file system's, or a quota on it."""
    return "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"


def host_failure(error: BaseException) -> str:
    """Return the message for an error by which this host, not dlemu, failed; '' for others.

    The host lacked memory or processes, or a drive or file system failed where no message says more.
    """
    if isinstance(error, OSError) and error.errno in _STORAGE_FAILED:
        named = error.filename or "a file"
        return f"{named}: {error.strerror}: the storage failed to access it; see the kernel's log (dmesg) for why"
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
