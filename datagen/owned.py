"""Ownership of files and folders: dlemu removes only what it created itself. That is recognised in three ways.

- A marker, `.dlemu-owned`, lists what dlemu is about to create in a folder, one line of JSON for each name. Names are
  direct children of the folder, so that no marker, whoever wrote it, can name anything outside.
- Temporary files are named `.NAME.dlemu-<16 hex digits>.part`. Those that a live process has locked stay.
- This command created the folder: a scratch folder is removed with all that is in it, another one if it is empty.

Links are never followed. Only this module removes full folders; a test lists the other code that removes files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from datagen.errors import SpaceError, UserError
from datagen.regular import check_local, open_descriptor

MARKER = ".dlemu-owned"
_HEAD = {"dlemu": "names in this folder that dlemu made, and may remove", "version": 1}
_MAX_MARKER_BYTES = 64 << 20  # more than the marker of a million names; dlemu writes no larger one
_SYSTEM_NAMES = re.compile(
    r"lost\+found|\.Trash.*|\.snapshots?|\.zfs|\.nfs.*|\.fuse_hidden.*|\.lustre|\.DS_Store|\.gitkeep|\$RECYCLE\.BIN|"
    r"System Volume Information"
)
"""Names that file systems and file managers create; a folder with only these counts as empty."""
_NO_LINK = os.O_DIRECTORY | os.O_NOFOLLOW  # opens a folder, but no link to one
_NOT_OURS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENOTEMPTY, errno.EEXIST, errno.ENAMETOOLONG)
"""Errors that mean that what a marker lists is gone, or another file has its name. Other errors: the storage fails."""


@dataclass(frozen=True)
class OwnFolder:
    """A folder that dlemu may use."""

    path: str
    made: tuple[str, ...]  # folders that this command created to make the path, the outermost first
    marked: bool  # this command created the marker, and so everything that the marker lists

    def drop(self) -> None:
        """Remove what this command created in the folder, then those folders that it created and that are empty."""
        if self.marked:
            remove_claimed(self.path, keep_folder=True)
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):  # not empty: something else was put there
                if os.listdir(folder) == [MARKER]:
                    os.unlink(os.path.join(folder, MARKER))
                os.rmdir(folder)


def check_usable(folder: str, setting: str) -> None:
    """Raise UserError if a folder holds files that dlemu did not create; change nothing.

    A usable folder does not exist, has a marker, or holds only files of the file system. `setting` is for messages.
    """
    check_local(folder, setting)
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise UserError(f"{setting} is {folder}, which is not a folder: set it to a new or empty folder")
        foreign = "" if os.path.lexists(os.path.join(folder, MARKER)) else next(_foreign_files(folder), "")
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(folder):
            problem = f"{setting} is {folder}, a broken link, or a folder whose files come and go"
            raise UserError(f"{problem}: name another folder") from None
        return
    except OSError as error:  # a loop of links, a name that is too long, a folder that may not be entered or listed
        raise UserError(
            f"{setting} is {folder}, which can't be used: {error.strerror}; set it to a folder you may read and write"
        ) from error
    if foreign:
        raise UserError(
            f"{setting} is {folder}, which holds files that dlemu did not make, such as {foreign}: set it to a new or "
            f"empty folder, such as {os.path.join(folder, 'dlemu')}"
        )


def _foreign_files(folder: str) -> Iterator[str]:
    """Yield the files below a folder that are not the file system's own, in order of name."""
    with os.scandir(folder) as entries:
        children = sorted(entries, key=lambda entry: entry.name)
    for entry in children:
        if not _SYSTEM_NAMES.fullmatch(entry.name):
            yield from _foreign_files(entry.path) if entry.is_dir(follow_symlinks=False) else (entry.path,)


def take_folder(folder: str, setting: str) -> OwnFolder:
    """Create a folder, or use one that passes `check_usable`, and add the marker. Raises UserError, SpaceError."""
    check_usable(folder, setting)
    own_folder = OwnFolder(folder, missing_folders(folder), not os.path.lexists(os.path.join(folder, MARKER)))
    try:
        os.makedirs(folder, exist_ok=True)
        claim(folder)
    except OSError as error:
        own_folder.drop()
        raise SpaceError(
            f"{setting} is {folder}, which can't be written: {error.strerror}; set it to a writable folder"
        ) from error
    return own_folder


def missing_folders(folder: str) -> tuple[str, ...]:
    """Return the folder and those of its parents that do not exist, the outermost first; () if the folder exists."""
    missing: list[str] = []
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return tuple(reversed(missing))


def fresh_folder(parent: str, name: str) -> str:
    """Create a new folder in a folder of ours, `NAME`, or `NAME-2` and so on if that exists; return its path."""
    os.makedirs(parent, exist_ok=True)
    for path in numbered(os.path.join(parent, name)):
        claim(parent, os.path.basename(path) + "/")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            break
    claim(path)
    return path


def numbered(path: str) -> Iterator[str]:
    """Yield PATH, PATH-2, PATH-3, ..."""
    yield path
    yield from (f"{path}-{number}" for number in itertools.count(2))


def claim(folder: str, *names: str) -> None:
    """Add to a folder's marker the names that dlemu is about to create: files, or folders (`NAME/`). Raises OSError."""
    # A name that exists already is not ours
    names = tuple(name for name in names if not os.path.lexists(os.path.join(folder, name.rstrip("/"))))
    path = os.path.join(folder, MARKER)
    with open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENODEV, "it is a pipe, a device or a folder, not a file", path)
        head = [_HEAD] if os.fstat(descriptor).st_size == 0 else []
        data = "".join(f"{json.dumps(line)}\n" for line in (*head, *names)).encode()
        if data and os.write(descriptor, data) < len(data):  # one call, because several processes may append
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def claimed(folder: str) -> set[str]:
    """Return the names that the marker of a folder lists, `NAME/` for folders; empty without a readable marker."""
    with contextlib.suppress(OSError), open_descriptor(folder, os.O_DIRECTORY) as descriptor:
        return _read_marker(descriptor)
    return set()


def _read_marker(folder: int) -> set[str]:
    """Return the names that the marker of an open folder lists. Raises OSError if it can't be read."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(MARKER, flags, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_MARKER_BYTES:
                return set()
            lines = file.read().splitlines()
    except OSError as error:
        if error.errno in _NOT_OURS:
            return set()
        raise
    names = set()
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # a process may be killed while it writes a line
            name = json.loads(line)
            child = name.removesuffix("/") if isinstance(name, str) else ""
            if child not in ("", ".", "..", MARKER) and not any(sign in child for sign in "/\0"):
                names.add(name)
    return names


def remove_claimed(folder: str, *, keep_folder: bool = False) -> None:
    """Remove what the marker of a folder lists, then the marker, then the folder if it is empty.

    Of a listed folder, its own marker says what to remove. Links stay, and so does what can't be removed. An empty
    folder without a marker (the disk was too full for one) is removed if its parent's marker lists it. If the storage
    fails (EIO, a file system that turned read-only), the marker stays, and a later call removes the rest.
    """
    with contextlib.suppress(OSError):
        with open_descriptor(folder, _NO_LINK) as descriptor:
            had_marker = _empty_folder(descriptor)
        parent, name = os.path.split(folder.rstrip("/"))
        if not keep_folder and (had_marker or f"{name}/" in claimed(parent or ".")):
            os.rmdir(folder)


def unmark(folder: str, name: str) -> None:
    """Remove the marker of a folder that holds nothing else, if the marker lists no subfolder but `name`."""
    with contextlib.suppress(OSError):
        if claimed(folder) <= {f"{name}/"} and os.listdir(folder) == [MARKER]:
            os.unlink(os.path.join(folder, MARKER))


def remove_files(folder: str, names: Iterable[str]) -> None:
    """Remove the files of these names that the marker of a folder lists, if they are regular files."""
    with contextlib.suppress(OSError), open_descriptor(folder, os.O_DIRECTORY) as descriptor:
        for name in _read_marker(descriptor).intersection(names):
            with contextlib.suppress(OSError):
                _remove_file(descriptor, name)


def _remove_file(folder: int, name: str) -> None:
    if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)


def _empty_folder(folder: int) -> bool:
    """Remove what the marker of an open folder lists, then the marker; return whether there was one. Raises OSError."""
    failure: OSError | None = None
    for name in _read_marker(folder):
        try:
            if name.endswith("/"):
                with open_descriptor(name[:-1], _NO_LINK, inside=folder) as child:
                    _empty_folder(child)
                os.rmdir(name[:-1], dir_fd=folder)
            else:
                _remove_file(folder, name)
        except RecursionError:  # only forged markers nest so deep
            failure = OSError("folders nest too deep")
        except OSError as error:
            if error.errno not in _NOT_OURS:
                failure = error
    if failure is not None:  # the marker stays, for another attempt
        raise failure
    with contextlib.suppress(OSError):
        os.unlink(MARKER, dir_fd=folder)
        return True
    return False


@contextlib.contextmanager
def scratch_folder(parent: str, name: str) -> Iterator[str]:
    """Create a temporary folder in `parent`; remove it on exit, unless the caller has renamed it to `name`."""
    folder = os.path.join(parent, part_name(name))
    os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # does not follow links; does nothing for a renamed folder


def part_name(name: str) -> str:
    """Return an unpredictable temporary name for a file that will be renamed to `name`."""
    return f".{name}.dlemu-{os.urandom(8).hex()}.part"  # as by the module secrets, without importing it


def create_part(path: str, *, flags: int = 0) -> tuple[str, int]:
    """Create a temporary file for `path`, locked until it is closed; return its path and its descriptor."""
    folder, slash, name = path.rpartition("/")
    part = f"{folder}{slash}{part_name(name)}"
    descriptor = create_new(part, flags=os.O_WRONLY | flags, mode=0o666)
    lock(descriptor)
    return part, descriptor


def create_new(path: str, *, flags: int = os.O_RDWR, mode: int = 0o644) -> int:
    """Create a new file without following links; return its descriptor. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def create_claimed(folder: str, name: str) -> int:
    """List a file in the folder's marker, and create it. Only a file that was listed is replaced. Raises OSError."""
    claim(folder, name)
    remove_files(folder, [name])
    return create_new(os.path.join(folder, name), flags=os.O_WRONLY)


def remove_parts(folder: str, name: str | None = None) -> None:
    """Remove temporary files that killed writers left in a folder: all, or only those for `name`. Raises OSError."""
    final_name = ".+" if name is None else re.escape(name)
    is_part = re.compile(rf"\.{final_name}\.dlemu-[0-9a-f]{{16}}\.part", re.DOTALL).fullmatch
    with os.scandir(folder) as entries:
        parts = [entry.path for entry in entries if is_part(entry.name) and entry.is_file(follow_symlinks=False)]
    for path in parts:
        if not is_held(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Lock a file until the `with` block and all processes forked within it have ended. A missing file is created.

    On a full disk, or a file system without locks, nothing is locked, and `is_held` returns False.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock(stack.enter_context(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)))
        yield


def lock(descriptor: int) -> None:
    """Lock a file open for writing until every process that has it open closes it; do nothing if that fails."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: str) -> bool:
    """Return whether a process that locked the file still runs, as far as this host can tell."""
    try:
        with open_descriptor(path, os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # NFS grants no exclusive lock to a reader
    except OSError as error:  # the file is locked, or another user's, whose lock can't be tested
        return isinstance(error, (BlockingIOError, PermissionError))
    return False
