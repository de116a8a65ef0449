"""The settings of a kind of job, with two that exclude each other: docs/extending.md."""

from dataclasses import dataclass
from typing import Annotated

from datagen.settings import BYTES, at_least


@dataclass(frozen=True, kw_only=True)
class StatSettings:
    """How metadata is read."""

    files: Annotated[int, at_least(1)] = 1000
    """Files whose metadata is read."""
    folder: str = "./files/"
    """Folder of the files."""
    stride_bytes: Annotated[int, at_least(0), BYTES] = 0
    """Bytes between two reads; 0 reads nothing."""

    def problems(self, where):
        if self.stride_bytes and self.files > 10**6:
            yield f"{where}.stride_bytes and {where}.files are both large: wanted one of them"


SECTION = ("stat", StatSettings)
