"""Short names for values of one setting: of paths, the part in which they differ."""

from __future__ import annotations

import os
from collections.abc import Iterable


def short_names(values: Iterable[str]) -> dict[str, str]:
    """Return each value with its short name: /mnt/a/unet3d and /mnt/b/unet3d are a and b; what is no path stays."""
    parts = {value: os.path.normpath(value).split(os.sep) if os.sep in value else [value] for value in values}
    if len(parts) < 2:
        return {value: value for value in parts}
    shortest = min(map(len, parts.values()))
    before = next((n for n in range(shortest) if len({part[n] for part in parts.values()}) > 1), 0)
    after = next((n for n in range(shortest) if len({part[-1 - n] for part in parts.values()}) > 1), 0)
    return {value: os.sep.join(part[before : len(part) - after]) or value for value, part in parts.items()}
