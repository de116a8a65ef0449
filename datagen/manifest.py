"""The manifest `DATA_FOLDER/dlemu.json`: the settings of a dataset, and whether it is complete.

It is written before the first file, marked as incomplete, and again after the last one, marked as complete.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

from datagen.content import CONTENT_VERSION
from datagen.errors import DatasetError, ServerError, UserError
from datagen.spec import DatasetSpec, build, refuse
from datagen.storage.storage_base import StorageBase, read_whole, write_whole

MANIFEST_NAME = "dlemu.json"
PACKED_NAME = "packed.json"  # written by `dlemu pack` beside its files, in place of a manifest
SCHEMA_VERSION = 1
FREE_KEYS = ("data_folder", "record_length_bytes_resize")
"""Settings that do not affect the files: a dataset may be moved, and its samples cropped differently."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Settings and state of a dataset."""

    spec: DatasetSpec
    complete: bool = False
    files: int = 0
    bytes: int = 0  # bytes of all files; 0 while incomplete
    made_at: str = ""  # when generation started (while incomplete) or finished: ISO 8601, UTC
    content_version: int = CONTENT_VERSION
    schema_version: int = SCHEMA_VERSION


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(data_folder: str, storage: StorageBase) -> Manifest | None:
    """Return the manifest of a dataset, or None. Raises DatasetError if it is unreadable or of another version."""
    path = os.path.join(data_folder, MANIFEST_NAME)
    try:
        values = json.loads(bytes(read_whole(storage, path)))
        for key, wanted in (("schema_version", SCHEMA_VERSION), ("content_version", CONTENT_VERSION)):
            if values.get(key) != wanted:
                raise DatasetError(
                    f"{path} has {key} {values.get(key)!r}, wanted {wanted}: another version of dlemu made the "
                    "dataset; make it again in an empty folder"
                )
        manifest = build(Manifest, values)
        refuse(manifest.spec.check())  # such as names outside the dataset's folder, or impossible sizes
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise DatasetError(
            f"{data_folder} is a file, not a folder, or is below a file: set dataset.data_folder to the folder of a "
            "dataset or a new one"
        ) from error
    except (DatasetError, ServerError):
        raise
    except (OSError, ValueError, AttributeError, UserError) as error:
        raise DatasetError(
            f"{path} is not a dataset's manifest ({error}): restore it, or delete the dataset and make it again"
        ) from error
    return replace(manifest, spec=replace(manifest.spec, data_folder=data_folder))


def write(data_folder: str, manifest: Manifest, storage: StorageBase) -> None:
    """Write a manifest, synced to the device before it is renamed to its final name. Raises OSError."""
    values = asdict(manifest)
    for key in FREE_KEYS:
        del values["spec"][key]
    path = os.path.join(data_folder, MANIFEST_NAME)
    write_whole(storage, path, (json.dumps(values, indent=2) + "\n").encode(), sync=True)


def differing_keys(existing: DatasetSpec, requested: DatasetSpec, keys: tuple[str, ...] | None = None) -> list[str]:
    """Return "KEY is A in the dataset and B in the settings" for all `keys` (or all but FREE_KEYS) that differ."""
    names = keys or tuple(key for key in asdict(existing) if key not in FREE_KEYS)
    existing, requested = _without_read_flags(existing), _without_read_flags(requested)
    return [text for name in names for text in _differences(name, getattr(existing, name), getattr(requested, name))]


def _differences(name: str, existing: Any, requested: Any) -> list[str]:
    """Return how a setting differs; for a section, how each of its settings does."""
    if existing == requested:
        return []
    if is_dataclass(existing):
        values = vars(existing).items()
        return [text for key, value in values for text in _differences(f"{name}.{key}", value, getattr(requested, key))]
    if isinstance(existing, tuple) and len(existing) > 8:
        return [f"{name} of the dataset differs from the settings"]
    return [f"{name} is {existing} in the dataset and {requested} in the settings"]


def _without_read_flags(spec: DatasetSpec) -> DatasetSpec:
    """Return the spec with every Parquet column marked as read, because reading fewer does not change the files."""
    columns = tuple(replace(column, read=True) for column in spec.parquet.columns)
    return replace(spec, parquet=replace(spec.parquet, columns=columns))
