"""The page cache and the datasets that fit into it: what must be read from storage must not lie in memory."""

from __future__ import annotations

from typing import Literal

from datagen.errors import UserError
from dlemu.metrics.cache import IN_MEMORY, WANTED_RATIO

Treatment = Literal["direct", "large", "evicted", "cached"]
"""Why trials read from storage: O_DIRECT, the memory rule, eviction before each epoch; or that they need not."""


def treatment(*, odirect: bool, cached: bool, total_bytes: int, memory_bytes: int, file_system: str) -> Treatment:
    """Return how trials are kept out of the page cache; raises UserError where nothing can do that."""
    if cached:
        return "cached"
    if file_system in IN_MEMORY:
        raise UserError(
            f"the dataset lies on {file_system}, which is memory and no storage; set dataset.data_folder to a folder "
            "of the drive, or say --cached to size memory"
        )
    if odirect:
        return "direct"
    return "large" if total_bytes >= WANTED_RATIO * memory_bytes else "evicted"
