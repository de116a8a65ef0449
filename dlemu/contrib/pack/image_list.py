"""Chooses the files to pack, and how many of them go into each packed file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlemu.contrib.pack.recipe import Kind, Recipe, kind_of
from dlemu.extend import DatasetError, StorageBase, UserError

FILES_PER_PROCESS = 4
"""Default number of packed files per process: with several each, all processes finish at about the same time."""
MAX_IMAGES_PER_FILE = 1024  # after an interruption, each process repeats at most one file: keep it small


@dataclass(frozen=True)
class ImageList:
    """The files to pack, in order."""

    folder: str
    """Folder that all files are below."""
    names: Sequence[str]
    """Paths below the folder."""
    kind: Kind | None = None
    """Content of all files; None to derive it from each file's name."""
    ignored: int = 0
    """Files of the folder that are left out, because their names are not those of images."""

    def path(self, index: int) -> str:
        """Return the full path of a file."""
        return f"{self.folder}/{self.names[index]}"

    def kind_of(self, index: int) -> Kind:
        """Return the content of a file."""
        return self.kind or kind_of(self.names[index])


def images_below(folder: str, target: str, recipe: Recipe, storage: StorageBase) -> ImageList:
    """Return the image files below a folder, or all files if the recipe keeps them as they are, sorted by name.

    Hidden files and the folder `target` are left out. Raises DatasetError if no file remains.
    """
    names = sorted(_files(folder, "", target.rstrip("/"), storage))
    chosen = names if recipe.keeps else [name for name in names if kind_of(name) != "file"]
    if not chosen:
        seen = f"{len(names)} files, none of them .jpeg, .png, .tiff or .npy" if names else "no files"
        raise DatasetError(f"{folder} holds {seen}: set source to a folder of images, or encode=keep to pack any file")
    return ImageList(folder, chosen, ignored=len(names) - len(chosen))


def _files(folder: str, below: str, target: str, storage: StorageBase) -> Iterator[str]:
    folders = []
    try:
        with storage.entries(f"{folder}/{below}".rstrip("/")) as entries:
            for entry in entries:
                name = f"{below}{entry.name}"
                if entry.name.startswith(".") or f"{folder}/{name}" == target:
                    continue
                if entry.is_dir():
                    folders.append(f"{name}/")
                else:
                    yield name
    except OSError as error:
        raise DatasetError(f"{folder}/{below}: {error.strerror}: wanted a folder of files to pack") from error
    for inner in folders:
        yield from _files(folder, inner, target, storage)


def choose_images_per_file(images: int, processes: int, requested: int) -> int:
    """Return the number of images per packed file: `requested`, or if that is 0, FILES_PER_PROCESS files per process.

    Training needs files of equal length, so a similar number that divides the images evenly is preferred.
    """
    target = max(1, min(images // (FILES_PER_PROCESS * processes), MAX_IMAGES_PER_FILE))
    return requested or nearest_divisor(images, target) or target


def nearest_divisor(images: int, target: int) -> int:
    """Return the divisor of `images` nearest to `target`, within a factor of 2; 0 if there is none."""
    near = range(-(-target // 2), min(2 * target, MAX_IMAGES_PER_FILE) + 1)
    return min((number for number in near if images % number == 0), key=lambda number: abs(number - target), default=0)


def check_count(images: int, available: int, source: str) -> int:
    """Return the number of images to pack: `images`, or all if it is 0; raises UserError if fewer are available."""
    if images > available:
        more = "" if source else f", or make more with dataset.num_files_train={images} and --make"
        raise UserError(f"images is {images}, but there are {available}: lower it{more}")
    return images or available
