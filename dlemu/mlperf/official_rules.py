"""Every rule of v3.0's Rules.md, and the checks that its tool adds: known here, known otherwise, or not checkable.

Source: Rules.md and the submission checker of mlcommons/storage (https://github.com/mlcommons/storage), as of the first
edition 4.0 drafts; ids and names are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_OF_THE_TOOL = "what the tool does, not what a tree holds"
_NOT_IN_FILES = "no file of a result tells it"
_DEFINITION = "a definition: what is published is recomputed by"
_ALLOWED = "it allows something; nothing breaks it"
_OTHER_BENCHMARK = "runs of this benchmark are listed (run.other), not judged"


@dataclass(frozen=True)
class OfficialRule:
    """One rule of the official text."""

    number: str
    name: str
    ours: tuple[str, ...] = ()
    """Rules here that hold a tree against it."""
    note: str = ""
    """How the check here differs, or why there is none."""

    @property
    def status(self) -> str:
        """`known`, `known otherwise`, `not checkable`, or `unknown`."""
        if self.ours:
            return "known otherwise" if self.note else "known"
        return "not checkable" if self.note else "unknown"


def _rule(number: str, name: str, ours: str = "", note: str = "") -> OfficialRule:
    return OfficialRule(number, name, tuple(ours.split()), note)


# fmt: off
OFFICIAL_RULES: tuple[OfficialRule, ...] = (
    _rule("1.1", "mlpstorageGeneratesHierarchy", "", _OF_THE_TOOL),
    _rule("1.2", "storageBackendEnvVarDeclaration", "", _NOT_IN_FILES),
    _rule("2.1.1", "submitterRootDirectory", "submission.name"),
    _rule("2.1.2", "topLevelSubdirectories", "submission.top"),
    _rule("2.1.3", "openMatchesClosed", "division.differs overrides.unknown",
          "both divisions are held against the same rules"),
    _rule("2.1.4", "closedSubmitterDirectory", "submission.folders"),
    _rule("2.1.5", "requiredSubdirectories", "submission.folders"),
    _rule("2.1.5.a", "requiredSubdirectoriesClosed", "submission.folders",
          "a folder of code is let pass at the submitter's level, too: v3.0 kept it there"),
    _rule("2.1.5.b", "requiredSubdirectoriesOpen", "submission.folders", "the same"),
    _rule("2.1.6", "codeDirectoryContents", "submission.code code.image code.changed",
          "the hash is taken as the text and as the tool's code leave files out; either may fit"),
    _rule("2.1.7", "systemsDirectoryFiles", "systems.files systems.schema systems.unfilled files.empty"),
    _rule("2.1.8", "resultsDirectorySystems", "systems.missing systems.pdf systems.name"),
    _rule("2.1.9", "identicalSystemConfig", "systems.hosts hosts.changed runs.differ papers.differ code.mixed"),
    _rule("2.1.10", "workloadCategories", "submission.category",
          "kv_cache and vector_database are let pass: the text's list is older than they are"),
    _rule("2.1.11", "trainingWorkloads", "submission.workload"),
    _rule("2.1.12", "trainingPhases", "files.phases files.datasize"),
    _rule("2.1.13", "datagenTimestamp", "files.datagen_count files.datagen_stamp"),
    _rule("2.1.14", "datagenFiles", "files.datagen",
          "*output.json, *per_epoch_stats.json and *summary.json are not wanted: datagen writes none of them"),
    _rule("2.1.15", "datagenDlioConfig", "files.datagen_config"),
    _rule("2.1.16", "runResultsJson", "files.results results.differ"),
    _rule("2.1.17", "runTimestamps", "runs.count runs.stamp"),
    _rule("2.1.18", "runTimestampGap", "runs.gap runs.overlap",
          "less than two runs' time from start to start, as the checker has it"),
    _rule("2.1.18a", "runPickingSubsets", "", _ALLOWED),
    _rule("2.1.19", "runFiles", "files.run files.ranks runs.ended files.empty"),
    _rule("2.1.20", "runDlioConfig", "files.run_config"),
    _rule("2.1.21", "checkpointingWorkloads", "checkpoint.model"),
    _rule("2.1.22", "checkpointingResultsJson", "files.checkpoint_results results.differ"),
    _rule("2.1.23", "checkpointingTimestamps", "checkpoint.calls"),
    _rule("2.1.24", "checkpointingTimestampGap", "checkpoint.gap", "by 4.7.1's 30 s, which are fewer"),
    _rule("2.1.24a", "checkpointingPickingSubsets", "", _ALLOWED),
    _rule("2.1.25", "checkpointingFiles", "files.checkpoint files.ranks files.empty"),
    _rule("2.1.26", "checkpointingDlioConfig", "files.checkpoint_config"),
    _rule("2.1.27", "directoryDiagram", "submission.top submission.folders files.phases", "by the rules it draws"),
    _rule("2.29", "dlioLog", "files.run files.checkpoint", "by the rules it draws"),
    _rule("3.1.1", "trainingVerifyDatasizeUsage", "dataset.told files.datasize"),
    _rule("3.1.2", "trainingRecalculateDatasetSize", "dataset.size dataset.steps",
          "at least as many files, as the checker has it; the text says exactly"),
    _rule("3.2.1", "trainingDatagenMinimumSize", "dataset.made"),
    _rule("3.3.1", "trainingRunDataMatchesDatasize", "dataset.phases dataset.differs papers.differ",
          "not fewer than datasize asked for and not more than datagen made, as the checker has it"),
    _rule("3.3.2", "trainingAcceleratorUtilizationCheck", "au.low", "AU is recomputed from the ranks' steps"),
    _rule("3.3.3", "trainingSingleHostSimulatedAccelerators", "hosts.few"),
    _rule("3.3.4", "trainingSingleHostClientLimit", "hosts.named"),
    _rule("3.3.5", "trainingDistributedDataAccessibility", "", _NOT_IN_FILES),
    _rule("3.3.6", "trainingIdenticalAcceleratorsPerNode", "hosts.uneven"),
    _rule("3.3.7", "trainingNodeCapabilityConsistency", "",
          "the text itself doubts it; hosts.memory compares sums alone"),
    _rule("3.3.8", "trainingResultAggregation", "results.differ", _DEFINITION + " this rule"),
    _rule("3.4.1", "trainingMlpstoragePathArgs", "dataset.folder"),
    _rule("3.4.2", "trainingMlpstorageFilesystemCheck", "dataset.filesystem papers.differ"),
    _rule("3.6.1", "trainingClosedSubmissionChecksum", "code.changed",
          "by the hash noted with the image; no official hash is published to compare it with"),
    _rule("3.6.2", "trainingClosedSubmissionParameters", "overrides.unknown overrides.open overrides.value"),
    _rule("3.6.3", "trainingOpenSubmissionParameters", "overrides.unknown"),
    _rule("4.3.1", "checkpointDataSizeRatio", "checkpoint.memory",
          "a warning: whether caches were cleared is not told"),
    _rule("4.3.2", "checkpointFsyncVerification", "checkpoint.fsync"),
    _rule("4.3.3", "checkpointModelConfigurationReq", "checkpoint.model checkpoint.settings checkpoint.size"),
    _rule("4.3.4", "checkpointAggregateAcceleratorMemory", "checkpoint.accelerator"),
    _rule("4.3.5", "checkpointSubsetRunValidation", "checkpoint.subset"),
    _rule("4.3.6", "checkpointResultAggregation", "checkpoint.differs results.differ", _DEFINITION + " these rules"),
    _rule("4.4.1", "checkpointPathArgs", "checkpoint.folder"),
    _rule("4.4.2", "checkpointFilesystemCheck", "checkpoint.filesystem papers.differ"),
    _rule("4.6.1", "checkpointClosedMpiProcesses", "checkpoint.processes checkpoint.subset"),
    _rule("4.6.2", "checkpointClosedAcceleratorsPerHost", "checkpoint.hosts",
          "exactly 4 is a warning: text and table differ, and the working group has yet to choose"),
    _rule("4.6.3", "checkpointClosedCheckpointParameters", "checkpoint.overrides checkpoint.settings"),
    _rule("4.6.4", "checkpointOpenSubmissionScaling", "checkpoint.processes"),
    _rule("4.7.1", "checkpointCacheFlushValidation", "checkpoint.gap checkpoint.overlap checkpoint.count"),
    _rule("4.7.2", "checkpointTotalTestDuration", "checkpoint.duration"),
    _rule("4.7.3", "checkpointRemappingTimeReporting", "checkpoint.remap"),
    _rule("4.7.4", "checkpointSimultaneousRwSupport", "checkpoint.simultaneous"),
    *(_rule(number, name, "", _OTHER_BENCHMARK) for number, name in (
        ("5.1.1", "vdbDatasetScale"), ("5.1.2", "vdbDimensionConsistency"), ("5.2.1", "vdbCollectionPopulated"),
        ("5.2.2", "vdbIndexBuildCompleted"), ("5.3.1", "vdbRunCount"), ("5.3.2", "vdbRecallReported"),
        ("5.3.3", "vdbQueryCountMinimum"), ("5.3.4", "vdbMetricsReported"), ("5.3.5", "vdbGroundTruthIntegrity"),
        ("5.4.1", "vdbPathArgs"), ("5.4.2", "vdbFilesystemCheck"), ("5.5.1", "vdbObjectStorageBackend"),
        ("5.6.1", "vdbClosedSubmissionChecksum"), ("5.6.2", "vdbClosedDatabaseBackend"),
        ("5.6.3", "vdbClosedIndexTypes"), ("5.6.4", "vdbClosedSubmissionParameters"),
        ("5.6.5", "vdbOpenSubmissionParameters"),
        ("6.3.1.1", "kvcacheFixedWorkloadPerOption"), ("6.3.2.1", "kvcacheClosedSequenceLocks"),
        ("6.3.2.2", "kvcacheAutoscalingProhibited"), ("6.3.3.1", "kvcacheClientDefinition"),
        ("6.3.3.2", "kvcacheScaleUpModel"), ("6.3.3.3", "kvcachePerClientIsolation"),
        ("6.3.3.4", "kvcacheSharedResultsDir"), ("6.3.4.1", "kvcacheAggregateBandwidth"),
        ("6.3.4.2", "kvcacheAggregateThroughput"), ("6.3.4.3", "kvcacheAggregateDeviceLatency"),
        ("6.3.4.4", "kvcacheLatencyValidity"), ("6.3.4.5", "kvcacheHeadlineResult"), ("6.4.1", "kvcachePosixCacheDir"),
        ("6.4.2", "kvcachePosixIoModel"), ("6.5.1", "kvcacheObjectViaGateway"), ("6.5.2", "kvcacheObjectLatencyScope"),
        ("6.6.1", "kvcacheClosedImmutable"), ("6.6.2", "kvcacheOpenAllowances"), ("6.6.3", "kvcacheOpenInvocationNote"),
    )),
    _rule("CHECK-01", "pool structure", "submission.top code.image", "by the rules on folders and pointers"),
    _rule("CHECK-02", "poolImageSelfConsistency", "code.changed"),
    _rule("CHECK-03", "pool marker", "", "the pool is found by its images; its marker file says nothing more"),
    _rule("CHECK-04", "one layout", "submission.folders submission.code", "every layout that held code is let pass"),
    _rule("LEAF-01", "leaf pointer", "code.image"),
    _rule("RPT-01", "report integrity", "results.differ", "from the runs' own files"),
    _rule("PROV-01", "leafProvenance", "provenance.broken provenance.differs"),
    _rule("PROV-02", "submissionManifest", "submission.manifest"),
    _rule("EDN-03", "edition", "edition.differs provenance.differs"),
)
# fmt: on
UNKNOWN = tuple(rule for rule in OFFICIAL_RULES if rule.status == "unknown")
"""Rules that are neither known here nor said to be beyond a check."""


def listed() -> Iterator[tuple[OfficialRule, str]]:
    """Yield every official rule with what is done about it here, in words."""
    for rule in OFFICIAL_RULES:
        names = ", ".join(rule.ours)
        yield rule, f"{names}: {rule.note}" if names and rule.note else names or rule.note or "unknown"
