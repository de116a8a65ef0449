"""Where DLIO's files of a run go."""

from __future__ import annotations

from dataclasses import dataclass

LOG = "dlio.log"


@dataclass(frozen=True, kw_only=True)
class DlioFolders:
    """Where DLIO's files of a run go."""

    folder: str
    config_folder: str | None
    """Folder of config.yaml, hydra.yaml and overrides.yaml; None leaves them out."""
    overrides: tuple[str, ...] | None = None
    """What overrides.yaml says; None: the settings in which the run differs from the shipped workload."""
