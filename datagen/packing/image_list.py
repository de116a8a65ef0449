"""Which files are packed, and which of them go together into one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datagen.errors import DatasetError, UserError
from datagen.layout import Layout
from datagen.packing.recipe import Kind, Recipe, kind_of
from datagen.storage.storage_base import StorageBase

FILES_EACH = 4
"""Packed files for each process where nobody says how many images go into one: the last ones end together."""
MOST_IN_A_FILE = 1024  # an interrupted packing makes whole files again, at most one for each process


@dataclass(frozen=True)
class ImageList:
    """Files in order."""

    folder: str
    """What all paths begin with."""
    names: Sequence[str] | Layout
    """Paths below the folder: a list, or a layout that computes them."""
    kind: Kind | None = None
    """What every one of them holds; None where their names show."""
    passed_over: int = 0
    """Files of the folder that hold no images."""

    def __len__(self) -> int:
        return self.names.num_files if isinstance(self.names, Layout) else len(self.names)

    def name(self, index: int) -> str:
        """Return a path below the folder."""
        return self.names.name(index) if isinstance(self.names, Layout) else self.names[index]

    def path(self, index: int) -> str:
        """Return a path."""
        return f"{self.folder}/{self.name(index)}"

    def kind_of(self, index: int) -> Kind:
        """Return what a file holds."""
        return self.kind or kind_of(self.name(index))


def images_below(folder: str, target: str, recipe: Recipe, storage: StorageBase) -> ImageList:
    """Return the files below a folder by name, without hidden ones and those of `target`: images, or all to keep.

    Raises DatasetError where there are none.
    """
    names = sorted(_files(folder, "", target.rstrip("/"), storage))
    chosen = names if recipe.keeps else [name for name in names if kind_of(name) != "file"]
    if not chosen:
        seen = f"{len(names)} files, none of them .jpeg, .png, .tiff or .npy" if names else "no files"
        raise DatasetError(f"{folder} holds {seen}: set source to a folder of images, or encode=keep to pack any file")
    return ImageList(folder, chosen, passed_over=len(names) - len(chosen))


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


def images_each(images: int, processes: int, asked: int) -> int:
    """Return how many images go into a packed file: as many as requested, or so that each process makes some files.

    Training takes files of one length: where a number near by divides the images evenly, it is that one.
    """
    wanted = max(1, min(images // (FILES_EACH * processes), MOST_IN_A_FILE))
    return asked or even_share(images, wanted) or wanted


def even_share(images: int, wanted: int) -> int:
    """Return the number nearest to `wanted`, within a factor of 2, that divides the images evenly; 0 if none does."""
    near = range(-(-wanted // 2), min(2 * wanted, MOST_IN_A_FILE) + 1)
    return min((each for each in near if images % each == 0), key=lambda each: abs(each - wanted), default=0)


def check_count(images: int, there: int) -> int:
    """Return how many images to pack, 0 standing for all; raises UserError where there are fewer."""
    if images > there:
        raise UserError(
            f"images is {images}, but there are {there}: lower it, or make more with dataset.num_files_train={images} "
            "and --make"
        )
    return images or there
