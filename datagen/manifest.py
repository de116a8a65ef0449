"""What was made, in `DATA_FOLDER/dlemu.json`: there from the first file on, complete only when the last one is."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

from datagen.content import CONTENT_VERSION
from datagen.errors import DatasetError, ServerError, UserError
from datagen.spec import DatasetSpec, build, together
from datagen.storage.storage_base import StorageBase, read_whole, write_whole

MANIFEST_NAME = "dlemu.json"
SCHEMA_VERSION = 1
FREE_KEYS = ("data_folder", "record_length_bytes_resize")
"""Settings that do not change what is on disk: a dataset may be moved, and be cropped in another way."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was made, or is being made."""

    spec: DatasetSpec
    complete: bool = False
    files: int = 0
    bytes: int = 0
    """Bytes of all files; 0 while incomplete."""
    made_at: str = ""
    """When it was begun (incomplete) or finished: ISO 8601, UTC."""
    content_version: int = CONTENT_VERSION
    schema_version: int = SCHEMA_VERSION


def now() -> str:
    """Return the time of day for a manifest."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(data_folder: str, storage: StorageBase) -> Manifest | None:
    """Return the manifest of a dataset, None if it has none.

    Raises:
        DatasetError: it can't be read, or a newer dlemu wrote it.
    """
    path = _path(data_folder)
    try:
        values = json.loads(bytes(read_whole(storage, path)))
        version = values.get("schema_version")
        if version != SCHEMA_VERSION:
            raise DatasetError(f"{path} has schema_version {version}, this dlemu reads {SCHEMA_VERSION}: update dlemu")
        manifest = build(Manifest, values)
        if problems := manifest.spec.check():  # names outside the dataset's folder, sizes beyond any memory
            raise ValueError(together(problems))
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
    """Write a manifest, on the device before it has its name. Raises OSError."""
    values = asdict(manifest)
    for key in FREE_KEYS:
        del values["spec"][key]
    write_whole(storage, _path(data_folder), (json.dumps(values, indent=2) + "\n").encode(), sync=True)


def _path(data_folder: str) -> str:
    return os.path.join(data_folder, MANIFEST_NAME)


def differing_keys(made: DatasetSpec, asked: DatasetSpec, keys: tuple[str, ...] | None = None) -> list[str]:
    """Return `key is A there, B expected` of each setting that differs, of those that shape the files."""
    names = keys or tuple(key for key in asdict(made) if key not in FREE_KEYS)
    made, asked = _on_disk(made), _on_disk(asked)
    return [text for name in names for text in _differing(name, getattr(made, name), getattr(asked, name))]


_SHOWN = 60
"""Characters of a value that a message shows."""


def _differing(name: str, made: Any, asked: Any) -> list[str]:
    """Return what differs of one setting, or of each setting of a section."""
    if made == asked:
        return []
    if is_dataclass(made) and type(made) is type(asked):
        inner = [each.name for each in fields(made)]
        return [text for key in inner for text in _differing(f"{name}.{key}", getattr(made, key), getattr(asked, key))]
    there, here = (f"{len(value)} of them" if _is_long(value) else str(value) for value in (made, asked))
    if there == here:
        return [f"{name} there differ from those in the settings"]
    return [f"{name} is {there} there and {here} in the settings"]


def _is_long(value: Any) -> bool:
    return isinstance(value, tuple) and len(str(value)) > _SHOWN


def _on_disk(spec: DatasetSpec) -> DatasetSpec:
    """Return a spec without what says nothing about its files: which columns are read."""
    columns = tuple(replace(column, read=True) for column in spec.parquet.columns)
    return replace(spec, parquet=replace(spec.parquet, columns=columns))
