"""Puts files of a user wherever dlemu works, to check that dlemu leaves them unchanged."""

from __future__ import annotations

import os
from pathlib import Path

_OF_USERS = ("notes.txt", ".mine", "photo.jpeg", "mine/deep/notes.txt")
_LIKE_OURS = (
    *("mine.part", ".img_1_of_2.npz.part", "rank_99999.steps", "rows_99999", "finished_99999", "rank_0.ckpt"),
    *("99_output.json", "point-99"),
)
"""Names as dlemu gives, or once gave: files that are not its own must stay all the same."""


class UsersFiles:
    def __init__(self) -> None:
        self._files: dict[Path, bytes | str] = {}
        """Path -> content of a file, or target of a link."""

    def put(self, folder: Path) -> None:
        """Put files, a folder and links into a folder, which is made if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*_OF_USERS, *_LIKE_OURS):
            path = folder / name
            if not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                content = f"of the user: {path}".encode()
                path.write_bytes(content)
                self._files[path] = content
        target = folder / "mine" / "behind.txt"
        for path in (folder / "a-link", folder / "mine" / "a-link"):
            if not os.path.lexists(path):
                path.symlink_to(target)
                self._files[path] = str(target)
        if target not in self._files:
            target.write_bytes(b"of the user, behind a link")
            self._files[target] = b"of the user, behind a link"

    def put_everywhere(self, top: Path) -> None:
        folders = [Path(folder) for folder, _, _ in os.walk(top)]
        for folder in folders:
            if folder.is_dir():  # dlemu may have just removed it
                self.put(folder)

    def changed(self) -> list[str]:
        """Return a sentence for each file or link that is gone or different."""
        problems = []
        for path, content in self._files.items():
            if not os.path.lexists(path):
                problems.append(f"{path} is gone")
            elif isinstance(content, str):
                if not path.is_symlink() or os.readlink(path) != content:
                    problems.append(f"{path} is another link, or none")
            elif path.is_symlink() or path.read_bytes() != content:
                problems.append(f"{path} has another content")
        return problems
