"""Where folders lie: DLIO's rule that relative ones start at the storage's root."""

from __future__ import annotations

import os
from dataclasses import replace

from datagen.storage.storage_base import FOLDER_TYPES
from dlemu.config.schema import Storage, Workload


def resolved_folder(storage: Storage, folder: str) -> str:
    """Return the path of `dataset.data_folder` or `checkpoint.checkpoint_folder`.

    A relative folder starts at `storage.storage_root`; `~` is the user's home; a URL stays as it is, and so does the
    path in a storage that is not made of folders.
    """
    if storage.storage_type not in FOLDER_TYPES:
        return folder
    folder = os.path.expanduser(folder)
    root = os.path.expanduser(storage.storage_root)
    if "://" in folder or os.path.isabs(folder) or os.path.normpath(root) == os.curdir:
        return folder
    return os.path.normpath(os.path.join(root, folder))


def with_resolved_folders(workload: Workload) -> Workload:
    """Return the workload with both folders resolved, and the root left at `./` so that no one joins it again."""
    storage, dataset, checkpoint = workload.storage, workload.dataset, workload.checkpoint
    root = Storage.storage_root if storage.storage_type in FOLDER_TYPES else storage.storage_root
    return replace(
        workload,
        dataset=replace(dataset, data_folder=resolved_folder(storage, dataset.data_folder)),
        checkpoint=replace(checkpoint, checkpoint_folder=resolved_folder(storage, checkpoint.checkpoint_folder)),
        storage=replace(storage, storage_root=root),
        # `storage_type=direct` is another word for it.
        reader=replace(workload.reader, odirect=workload.reader.odirect or storage.storage_type == "direct"),
    )
