"""The folders that DLIO's files are written to."""

from __future__ import annotations

from dataclasses import dataclass

LOG = "dlio.log"


@dataclass(frozen=True, kw_only=True)
class DlioFolders:
    """The folders for DLIO's files of one run: `folder` gets the results and dlio.log."""

    folder: str
    config_folder: str | None
    """Folder of config.yaml, hydra.yaml and overrides.yaml; None: they are not written."""
    overrides: tuple[str, ...] | None = None
    """Contents of overrides.yaml; None: the settings that differ from those of the shipped workload."""
