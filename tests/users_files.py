"""Files of a user's, put wherever dlemu works; afterwards they are all there, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

_OF_USERS = ("notes.txt", ".mine", "photo.jpeg", "mine/deep/notes.txt")
_LIKE_OURS = (
    *("mine.part", ".img_1_of_2.npz.part", "rank_99999.steps", "rows_99999", "finished_99999", "rank_0.ckpt"),
    *("99_output.json", "point-99"),
)
"""Names that dlemu gives, or gave once: what is not its own stays all the same."""


class UsersFiles:
    """What was put where, and what has become of it."""

    def __init__(self) -> None:
        self._files: dict[Path, bytes | str] = {}
        """The content of a file, the target of a link."""

    def put(self, folder: Path) -> None:
        """Put files, a folder and links into a folder, which is made when it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*_OF_USERS, *_LIKE_OURS):
            path = folder / name
            if not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                content = f"of the user: {path}".encode()
                path.write_bytes(content)
                self._files[path] = content
        behind = folder / "mine" / "behind.txt"
        for path in (folder / "a-link", folder / "mine" / "a-link"):
            if not os.path.lexists(path):
                path.symlink_to(behind)
                self._files[path] = str(behind)
        if behind not in self._files:
            behind.write_bytes(b"of the user, behind a link")
            self._files[behind] = b"of the user, behind a link"

    def put_everywhere(self, top: Path) -> None:
        """Put files into a folder and all below it."""
        folders = [Path(folder) for folder, _, _ in os.walk(top)]
        for folder in folders:
            if folder.is_dir():  # still: dlemu may be at work
                self.put(folder)

    def changed(self) -> list[str]:
        """Say which are gone or different."""
        found = []
        for path, content in self._files.items():
            if not os.path.lexists(path):
                found.append(f"{path} is gone")
            elif isinstance(content, str):
                if not path.is_symlink() or os.readlink(path) != content:
                    found.append(f"{path} is another link, or none")
            elif path.is_symlink() or path.read_bytes() != content:
                found.append(f"{path} has another content")
        return found
