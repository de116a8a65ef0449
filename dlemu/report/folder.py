"""A run's folder, made and dropped."""

from __future__ import annotations

import contextlib
import os
import shutil

from datagen.errors import SpaceError


def make_folder(folder: str) -> None:
    """Create a run's folder with its live part; raises SpaceError when it can't be written.

    Everything in it belongs to one run: a folder that has a summary.json is refused.
    """
    try:
        os.makedirs(os.path.join(folder, "live"), exist_ok=True)
    except OSError as error:
        raise SpaceError(
            f"the results folder {folder} can't be made: {error.strerror}; set output.folder to a folder you may write"
        ) from error
    if os.path.exists(os.path.join(folder, "summary.json")):
        raise SpaceError(f"{folder} holds the results of another run; set output.folder to a new folder")


def drop_live(folder: str) -> None:
    """Remove the live part once its content stands in steps.parquet and summary.json."""
    shutil.rmtree(os.path.join(folder, "live"), ignore_errors=True)


def drop_folder(folder: str) -> None:
    """Remove the folder of a run that measured nothing, and the folders above that it leaves empty."""
    drop_live(folder)
    with contextlib.suppress(OSError):  # something else lies there; it stays
        os.removedirs(folder)
