"""What dlemu made in a folder of this host, so that it never removes anything else.

A folder in which dlemu writes files that it may remove again has a marker, `.dlemu-owned`: a line of JSON for each
name that dlemu put there, noted before the file is made. Removing goes by these lines alone. A line names a direct
child of its folder: nothing in a marker, whoever wrote it, leads out of the folder, and links are never followed.
All of dlemu that removes folders does it here; what removes single files elsewhere is listed, with its reason, in a
test.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from datagen.errors import SpaceError, UserError

MARKER = ".dlemu-owned"
_HEAD = {"dlemu": "names in this folder that dlemu made, and may remove", "version": 1}
_PART = re.compile(r"\.(.+)\.dlemu-[0-9a-f]{16}\.part", re.DOTALL)
_MOST_BYTES = 64 << 20
"""A marker of a million names has less; what is larger, nobody of us wrote."""
_OF_FILE_SYSTEMS = re.compile(
    r"lost\+found|\.Trash.*|\.snapshots?|\.zfs|\.nfs.*|\.fuse_hidden.*|\.lustre|\.DS_Store|\.gitkeep|\$RECYCLE\.BIN|"
    r"System Volume Information"
)
"""What file systems, and programs that show them, put into folders by themselves: an empty folder may hold it."""


@dataclass(frozen=True)
class OwnFolder:
    """A folder that dlemu may use."""

    path: str
    made: tuple[str, ...]
    """Folders that were made for it, the outermost first: those that were there before are not ours to remove."""
    marked: bool
    """Its marker was made now: all that it lists is of this command."""

    def drop(self) -> None:
        """Remove what this command made in it, and the folders made for it that hold nothing else."""
        if self.marked:
            remove_claimed(self.path, keep_folder=True)
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):  # something else lies there now; it stays
                os.rmdir(folder)


def check_usable(folder: str, setting: str, *, ours: Sequence[str] = ()) -> None:
    """Raise UserError for a folder that holds what dlemu did not make; touches nothing.

    A folder is usable that does not exist, holds no file but what file systems keep in their root, or has a marker.
    `ours` are names of files by which a folder of an older version is known. `setting` is what the user sets it by.
    """
    status = _status(folder)
    if status is not None and not stat.S_ISDIR(status.st_mode):
        raise UserError(f"{setting} is {folder}, which is not a folder: set it to a new or empty folder")
    if status is None or any(os.path.lexists(os.path.join(folder, name)) for name in (MARKER, *ours)):
        return
    try:
        foreign = first_foreign(folder)
    except OSError as error:
        raise UserError(
            f"{setting} is {folder}, which can't be listed: {error.strerror}; set it to a folder you may read and write"
        ) from error
    if foreign is not None:
        raise UserError(
            f"{setting} is {folder}, which holds files that dlemu did not make, such as {foreign}: set it to a new or "
            f"empty folder, such as {os.path.join(folder, 'dlemu')}"
        )


def _status(folder: str) -> os.stat_result | None:
    """Return the state of what a path leads to, None where nothing is; raises UserError for a link to nothing."""
    try:
        return os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(folder):
            raise UserError(f"{folder} is a link to nothing: remove it, or name another folder") from None
        return None
    except OSError as error:  # a loop of links, a name that is too long, a folder that may not be entered
        raise UserError(f"{folder} can't be used: {error.strerror}; name another folder") from error


def first_foreign(folder: str) -> str | None:
    """Return a file of somebody's in a folder without marker, None where there is none; empty folders don't count."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if _OF_FILE_SYSTEMS.fullmatch(entry.name):
                continue
            if not entry.is_dir(follow_symlinks=False):
                return entry.path
            inside = first_foreign(entry.path)
            if inside is not None:
                return inside
    return None


def take_folder(folder: str, setting: str, *, ours: Sequence[str] = ()) -> OwnFolder:
    """Make a folder, or take one that `check_usable` lets pass, with its marker; raises UserError, SpaceError."""
    check_usable(folder, setting, ours=ours)
    marked = not os.path.lexists(os.path.join(folder, MARKER))
    taken = OwnFolder(folder, missing_folders(folder), marked)
    try:
        os.makedirs(folder, exist_ok=True)
        claim(folder)
    except OSError as error:
        taken.drop()
        raise SpaceError(
            f"{setting} is {folder}, which can't be written: {error.strerror}; set it to a writable folder"
        ) from error
    return taken


def missing_folders(folder: str) -> tuple[str, ...]:
    """Return the folder and those above it that are not there, the outermost first."""
    missing: list[str] = []
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return tuple(reversed(missing))


def fresh_folder(parent: str, name: str) -> str:
    """Make a folder that was not there, `NAME` or `NAME-2` and so on, in one of ours; return its path.

    What an interrupted run left under the name stays, and so does whatever somebody else put there.
    """
    os.makedirs(parent, exist_ok=True)
    number = 1
    while True:
        path = os.path.join(parent, name if number == 1 else f"{name}-{number}")
        claim(parent, os.path.basename(path) + "/")
        try:
            os.mkdir(path)
        except FileExistsError:
            number += 1
            continue
        claim(path)
        return path


def claim(folder: str, *names: str) -> None:
    """Note names that dlemu is about to make in a folder: files, or folders (`NAME/`). Raises OSError.

    A name under which something lies already is not ours and is not noted, unless it was noted before.
    """
    names = tuple(name for name in names if not os.path.lexists(os.path.join(folder, name.rstrip("/"))))
    path = os.path.join(folder, MARKER)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENODEV, "it is a pipe, a device or a folder, not a file", path)
        lines = [json.dumps(_HEAD)] if os.fstat(descriptor).st_size == 0 else []
        lines += [json.dumps(name) for name in names]
        if lines:  # by one call: several processes may append
            os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(descriptor)


def claimed(folder: str) -> set[str]:
    """Return the names that the marker of a folder lists, `NAME/` for folders; none where there is no marker."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return set()
    try:
        return _claimed_in(descriptor)
    finally:
        os.close(descriptor)


def _claimed_in(folder: int) -> set[str]:
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(MARKER, flags, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                return set()
            lines = file.read().splitlines()
    except OSError:
        return set()
    names = set()
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # a torn line of a process that was killed names nothing
            name = json.loads(line)
            if isinstance(name, str) and _is_child(name.removesuffix("/")):
                names.add(name)
    return names


def _is_child(name: str) -> bool:
    """Return whether a name is that of a direct child."""
    return name not in ("", ".", "..", MARKER) and not any(sign in name for sign in "/\0")


def remove_claimed(folder: str, *, keep_folder: bool = False) -> None:
    """Remove what the marker of a folder lists, then the marker, then the folder if nothing else is in it.

    Files that are regular, and folders by their own marker in turn; a link stays, and so does what is behind it.
    What can't be removed stays, too.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            marked = _remove_in(descriptor)
        finally:
            os.close(descriptor)
        if marked and not keep_folder:
            os.rmdir(folder)


def remove_files(folder: str, names: Iterable[str]) -> None:
    """Remove regular files of these names, as far as the marker of a folder lists them; all else in it stays."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in _claimed_in(descriptor).intersection(names):
                _remove_file(descriptor, name)
        finally:
            os.close(descriptor)


def _remove_file(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)


def _remove_in(folder: int) -> bool:
    """Remove what is claimed in an open folder; return whether it had a marker."""
    for name in _claimed_in(folder):
        if name.endswith("/"):
            with contextlib.suppress(OSError, RecursionError):
                _remove_child(folder, name[:-1])
        else:
            _remove_file(folder, name)
    try:
        os.unlink(MARKER, dir_fd=folder)
    except OSError:
        return False
    return True


def _remove_child(parent: int, name: str) -> None:
    child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        _remove_in(child)
    finally:
        os.close(child)
    os.rmdir(name, dir_fd=parent)


@contextlib.contextmanager
def scratch_folder(parent: str, name: str) -> Iterator[str]:
    """Give a folder beside its final place, under a name that nobody can know before; it is gone afterwards.

    All in it is ours. Raises OSError.
    """
    folder = os.path.join(parent, part_name(name))
    os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # follows no link; gone already where it was renamed


def part_name(name: str) -> str:
    """Return a name for a file under way, in the folder where it will be `name`: nobody can know it before."""
    return f".{name}.dlemu-{os.urandom(8).hex()}.part"  # as the module secrets does it


def create_part(path: str, *, flags: int = 0, mode: int = 0o666) -> tuple[str, int]:
    """Begin a file under way; return its path and descriptor. While its writer lives, it holds a lock on it."""
    folder, slash, name = path.rpartition("/")
    part = f"{folder}{slash}{part_name(name)}"
    descriptor = create_new(part, flags=os.O_WRONLY | flags, mode=mode)
    with contextlib.suppress(OSError):  # file systems without locks: then only its name says whose it is
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return part, descriptor


def create_new(path: str, *, flags: int = os.O_RDWR, mode: int = 0o644) -> int:
    """Create a file that was not there, following no link, and return its descriptor. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def create_claimed(folder: str, name: str) -> int:
    """Create a file, in place of one that was claimed before; return its descriptor.

    Raises OSError, FileExistsError where somebody else's has the name.
    """
    claim(folder, name)
    path = os.path.join(folder, name)
    if name in claimed(folder):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return create_new(path, flags=os.O_WRONLY)


def remove_parts(folder: str, name: str | None = None) -> None:
    """Remove the files under way that writers of dlemu left in a folder when they were killed: all, or one name's.

    Known by their names; a file whose writer still lives (it holds a lock) stays, as does whatever is no regular file.
    Raises OSError.
    """
    with os.scandir(folder) as entries:
        left = [
            entry.path
            for entry in entries
            if (match := _PART.fullmatch(entry.name))
            and name in (None, match[1])
            and entry.is_file(follow_symlinks=False)
        ]
    for path in left:
        if not _is_locked(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:  # another user's: whether its writer lives can't be seen
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
