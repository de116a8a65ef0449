"""What the editions' own checkers call the rules that they have too.

Sources: rule numbers and names of the submission checker of v3.0, check functions of `mlpstorage/rules.py` of v2.0
(https://github.com/mlcommons/storage). v1.0's report.py has no names.
"""

from __future__ import annotations

from dlemu.mlperf.rules import Division

_V2 = {
    "dataset.size": "check_num_files_train",
    "dataset.steps": "check_num_files_train",
    "overrides.open": "check_allowed_params",
    "overrides.unknown": "check_allowed_params",
    "overrides.odirect": "check_odirect_supported_model",
    "workflow.checkpoint": "check_workflow_parameters",
}
_V3 = {
    "submission.name": "2.1.1 submitterRootDirectory",
    "submission.top": "2.1.2 topLevelSubdirectories",
    "submission.folders": "2.1.5 requiredSubdirectories",
    "submission.code": "2.1.6 codeDirectoryContents",
    "systems.files": "2.1.7 systemsDirectoryFiles",
    "systems.missing": "2.1.8 resultsDirectorySystems",
    "systems.name": "2.1.8 resultsDirectorySystems",
    "systems.pdf": "2.1.8 resultsDirectorySystems",
    "systems.hosts": "2.1.9 identicalSystemConfig",
    "submission.category": "2.1.10 workloadCategories",
    "submission.workload": "2.1.11 trainingWorkloads",
    "files.phases": "2.1.12 trainingPhases",
    "files.datagen_count": "2.1.13 datagenTimestamp",
    "files.datagen_stamp": "2.1.13 datagenTimestamp",
    "files.datagen": "2.1.14 datagenFiles",
    "files.datagen_config": "2.1.15 datagenDlioConfig",
    "files.results": "2.1.16 runResultsJson",
    "runs.count": "2.1.17 runTimestamps",
    "runs.stamp": "2.1.17 runTimestamps",
    "runs.gap": "2.1.18 runTimestampGap",
    "runs.ended": "2.1.19 runFiles",
    "files.run": "2.1.19 runFiles",
    "files.run_config": "2.1.20 runDlioConfig",
    "dataset.told": "3.1.1 trainingVerifyDatasizeUsage",
    "dataset.size": "3.1.2 trainingRecalculateDatasetSize",
    "dataset.steps": "3.1.2 trainingRecalculateDatasetSize",
    "dataset.made": "3.2.1 trainingDatagenMinimumSize",
    "dataset.phases": "3.3.1 trainingRunDataMatchesDatasize",
    "au.low": "3.3.2 trainingAcceleratorUtilizationCheck",
    "hosts.few": "3.3.3 trainingSingleHostSimulatedAccelerators",
    "hosts.named": "3.3.4 trainingSingleHostClientLimit",
    "hosts.uneven": "3.3.6 trainingIdenticalAcceleratorsPerNode",
    "dataset.folder": "3.4.1 trainingMlpstoragePathArgs",
    "dataset.filesystem": "3.4.2 trainingMlpstorageFilesystemCheck",
}
_V3_OVERRIDES = {
    "closed": "3.6.2 trainingClosedSubmissionParameters",
    "open": "3.6.3 trainingOpenSubmissionParameters",
}


def official_id(rule: str, edition: str, division: Division) -> str | None:
    """Return what the edition's checker calls a rule of ours; None where it has none."""
    if edition == "3.0" and rule in ("overrides.open", "overrides.unknown"):
        return _V3_OVERRIDES[division]
    return {"2.0": _V2, "3.0": _V3}.get(edition, {}).get(rule)
