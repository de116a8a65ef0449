"""Every rule that `dlemu mlperf check` and `dlemu audit` know: what it means, how grave it is, and where it comes from.

docs/mlperf-rules.md is made of this table. Sources: rule numbers and names of the submission checker of v3.0, check
functions of `mlpstorage/rules.py` of v2.0, and the rules' texts (https://github.com/mlcommons/storage); v1.0's
report.py has no names. A rule without a source is dlemu's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlemu.results.finding import Severity

ALL = ("1.0", "2.0", "3.0")


@dataclass(frozen=True, kw_only=True)
class KnownRule:
    """One rule."""

    name: str
    severity: str
    """As it is given; where it depends on the edition, in words."""
    meaning: str
    editions: tuple[str, ...] = ALL
    """Editions whose results it is applied to."""
    text: str = ""
    """Where the rules' text, a workload file or a tool has it; empty for a rule of dlemu's own."""
    official: Mapping[str, str] = field(default_factory=dict)
    """What an edition's own checker calls it."""
    warned: bool = False
    """Whether v3.0's own round only warned of what its tool refuses since."""


def _rule(
    name: str,
    severity: str,
    meaning: str,
    text: str = "",
    *,
    v2: str = "",
    v3: str = "",
    editions: tuple[str, ...] = ALL,
    warned: bool = False,
) -> KnownRule:
    official = {edition: called for edition, called in (("2.0", v2), ("3.0", v3)) if called}
    return KnownRule(
        name=name, severity=severity, meaning=meaning, editions=editions, text=text, official=official, warned=warned
    )


V3 = ("3.0",)
PHASED = ("2.0", "3.0")
_OVERRIDES = "3.6.2 trainingClosedSubmissionParameters"
OPEN_OVERRIDES = "3.6.3 trainingOpenSubmissionParameters"
_CLOSED_PROCESSES = "4.6.1 checkpointClosedMpiProcesses"
OPEN_PROCESSES = "4.6.4 checkpointOpenSubmissionScaling"

# fmt: off
DATASET = (
    _rule("dataset.size", "error; warning in 1.0 and 2.0 when 1 % or less is missing",
          "smaller than 5 times the memory of all hosts, or than 500 steps; a memory limit that the system's "
          "description states counts as the memory",
          "text, dataset section", v2="check_num_files_train", v3="3.1.2 trainingRecalculateDatasetSize"),
    _rule("dataset.near", "warning", "large enough, but by less than 1 % of what the memory asks for"),
    _rule("dataset.limited", "info",
          "the system's description states a memory limit by a control group: it is taken"),
    _rule("dataset.steps", "error",
          "fewer than 500 steps an epoch, where the memory is not known",
          "text", v2="check_num_files_train", v3="3.1.2 trainingRecalculateDatasetSize"),
    _rule("dataset.differs", "error", "the runs did not read one dataset", "text"),
    _rule("dataset.phases", "error",
          "a run read more files than datagen made, or fewer than datasize asked for",
          v3="3.3.1 trainingRunDataMatchesDatasize", editions=PHASED, warned=True),
    _rule("dataset.made", "error",
          "datagen made fewer files than datasize asked for",
          v3="3.2.1 trainingDatagenMinimumSize", editions=PHASED),
    _rule("dataset.told", "error",
          "the metadata lack the dataset's settings", v3="3.1.1 trainingVerifyDatasizeUsage", editions=V3),
    _rule("dataset.folder", "error",
          "data and results in one folder, or not told which",
          v3="3.4.1 trainingMlpstoragePathArgs", editions=PHASED),
    _rule("dataset.filesystem", "error",
          "data and results on one file system, or not told", v3="3.4.2 trainingMlpstorageFilesystemCheck",
          editions=V3, warned=True),
)
SETTINGS = (
    _rule("config.incomplete", "error", "config.yaml is missing, can't be read, or lacks settings of the workload"),
    _rule("settings.changed", "error",
          "batch size, step time, epochs, record length, AU threshold, or the steps that AU leaves out, are "
          "not the edition's", "workload files"),
    _rule("workload.differs", "error",
          "another setting that makes the workload is not the edition's: format, framework, loader, shuffles, "
          "record lengths' deviation, total steps, checkpoints", "workload files; core_config_keys.yaml"),
    _rule("workload.hash", "warning",
          "no setting that is known differs, but the core-config-v1 hash of all of them does: there is a key "
          "that the workload file has not", "editions.yaml"),
    _rule("workload.unknown", "error", "the edition has no such workload and accelerator", "editions"),
    _rule("overrides.open", "error",
          "a setting was changed that only OPEN allows",
          v2="check_allowed_params", v3="3.6.2 trainingClosedSubmissionParameters"),
    _rule("overrides.unknown", "error",
          "a setting was changed that neither division allows",
          v2="check_allowed_params", v3="3.6.2 trainingClosedSubmissionParameters"),
    _rule("overrides.differ", "error", "the metadata, or hydra.yaml, tell other overrides than overrides.yaml"),
    _rule("overrides.value", "error",
          "reader.prefetch_size is none of 0, 1 and 2", "text, table of parameters", editions=PHASED),
    _rule("overrides.odirect", "error",
          "reader.odirect where the edition does not allow it", v2="check_odirect_supported_model"),
    _rule("workflow.checkpoint", "error",
          "no checkpoint where the edition wants one (unet3d)",
          v2="check_workflow_parameters", editions=("2.0",)),
    _rule("division.differs", "error; warning for closed metadata in open",
          "the metadata name another division than the tree, or call the run invalid", editions=PHASED, warned=True),
    _rule("edition.differs", "error", "the metadata name another edition than the tree is of: all its runs tell that",
          v3="EDN-03", editions=PHASED),
)
PAPERS = (
    _rule("papers.differ", "error",
          "metadata, configuration, overrides, summary, facts of the hosts, or the sidecar of the file systems tell "
          "one fact differently: benchmark, phase, model, accelerator, processes, hosts, memory, folders, settings",
          "2.1.9 of v3.0 as far as it goes"),
    _rule("papers.missing", "error",
          "a paper holds nothing, or lacks what the tool always writes: [] and {} are no metadata"),
    _rule("runs.exit", "error", "the metadata's exit_status is not 0", editions=PHASED),
    _rule("files.empty", "error; warning for a log", "a file has 0 bytes"),
)
RUNS = (
    _rule("au.low", "error; of a warm-up in 2.0 a warning",
          "AU below the threshold, from the steps that were kept",
          "text, metrics section", v3="3.3.2 trainingAcceleratorUtilizationCheck"),
    _rule("runs.count", "error; in 2.0 a warning from 5 on",
          "not 5 runs (1.0), or not a warm-up and 5 (2.0, 3.0)", "text", v3="2.1.17 runTimestamps"),
    _rule("runs.stamp", "error",
          "a run's folder is not named by its time", v3="2.1.17 runTimestamps", editions=PHASED),
    _rule("runs.misdated", "error",
          "a run did not begin soon after the time in its folder's name, or its metadata tell another",
          editions=PHASED),
    _rule("runs.ended", "error",
          "a run's folder without a summary of training: it failed, or is empty", "text", v3="2.1.19 runFiles"),
    _rule("runs.gap", "error in 3.0, else warning",
          "two runs began twice the shortest run's time apart, or more", "text", v3="2.1.18 runTimestampGap"),
    _rule("runs.overlap", "error", "a run began before the one before it had ended", "text: one after another"),
    _rule("runs.copied", "error",
          "a run has the steps of another one, the figures of its epochs, or the times of its checkpoints"),
    _rule("time.order", "error",
          "epochs, blocks or checkpoints of a rank overlap, or lie outside of the run by its summary"),
    _rule("time.phases", "error", "datasize or datagen after what they come before",
          "text: the dataset is made once, before the runs", editions=PHASED),
    _rule("time.year", "error; the past in 1.0 and 2.0 a warning",
          "a stamp of the future, or of a year in which nothing of the edition ran"),
    _rule("time.length", "error", "a run took longer than the call that started it", editions=V3),
    _rule("runs.clock", "error", "a run ended before it began"),
    _rule("runs.differ", "error", "accelerators, hosts or reader settings are not the same in all runs", "text"),
    _rule("runs.spread", "warning",
          "samples/s of the measured runs are more than 5 % apart", "text, results section"),
    _rule("runs.seed", "info",
          "the runs shuffled with one seed: the text wants another each time, the official tool does not "
          "change it", "text"),
    _rule("runs.failed", "warning",
          "a run of a rehearsal failed and was repeated: the runs are not consecutive", "text"),
    _rule("runs.single", "info", "one run alone: number and gaps are not judged"),
    _rule("hosts.uneven", "error",
          "not the same number of accelerators on every host", v3="3.3.6 trainingIdenticalAcceleratorsPerNode"),
    _rule("hosts.few", "warning",
          "fewer than 4 accelerators on the one host",
          v3="3.3.3 trainingSingleHostSimulatedAccelerators", editions=V3),
    _rule("hosts.named", "error",
          "a run on one host whose metadata name several",
          v3="3.3.4 trainingSingleHostClientLimit", editions=PHASED),
    _rule("hosts.changed", "error; warning when only rank 0's host is known to differ",
          "the runs were on different hosts", "text"),
    _rule("results.differ", "error",
          "mlperf_storage_report.json or results.json do not follow from the runs below",
          editions=("1.0", "3.0")),
    _rule("tool.other", "error in CLOSED",
          "dlio.log says that dlemu ran as a drop-in replacement for DLIO", "section 1 of v3.0's text"),
)
CHECKPOINTS = (
    _rule("checkpoint.model", "error", "none of the edition's models",
          "table of models", v3="4.3.3 checkpointModelConfigurationReq", editions=PHASED),
    _rule("checkpoint.settings", "error",
          "a setting of the model, or in CLOSED any other, is not the workload file's",
          "workload files", v3="4.6.3 checkpointClosedCheckpointParameters", editions=PHASED),
    _rule("checkpoint.overrides", "error",
          "CLOSED: another setting was changed than the folder, beside what the tool sets itself",
          v3="4.6.3 checkpointClosedCheckpointParameters", editions=PHASED),
    _rule("checkpoint.fsync", "error", "checkpoint.fsync is not true in the configuration",
          "v2.0, 2.2.2", v3="4.3.2 checkpointFsyncVerification", editions=PHASED),
    _rule("checkpoint.unsynced", "info",
          "the DLIO of v2.0 never calls fsync, whatever checkpoint.fsync says: it stores the setting as "
          "checkpoint_sync and looks at checkpoint_fsync", editions=("2.0",)),
    _rule("checkpoint.processes", "error",
          "CLOSED: not 8, 64, 512 or 1024 processes by the model; OPEN: no multiple of TP x PP",
          "table of models", v3="4.6.1 checkpointClosedMpiProcesses", editions=PHASED),
    _rule("checkpoint.subset", "error in 3.0, info in 2.0",
          "8 processes of a larger model: v2.0 allows it, v3.0's text lacks a word and its checker let such rows "
          "through, which were withdrawn", "issue 841 of mlcommons/storage",
          v3="4.3.5 checkpointSubsetRunValidation", editions=PHASED),
    _rule("checkpoint.hosts", "error; exactly 4 a warning", "CLOSED: not more than 4 processes on a host",
          "text; its table has 4", v3="4.6.2 checkpointClosedAcceleratorsPerHost", editions=PHASED),
    _rule("checkpoint.count", "error", "not 10 checkpoints saved and 10 loaded over all calls",
          "text", v3="4.7.1 checkpointCacheFlushValidation", editions=PHASED),
    _rule("checkpoint.calls", "error", "CLOSED: neither one call that saves and loads nor one that saves and then one "
          "that loads", "v3.0, 4.7.1", v3="2.1.23 checkpointingTimestamps", editions=PHASED),
    _rule("checkpoint.gap", "error; warning when negative",
          "more than 30 s from the end of the call that saves to the start of the one that loads, as the metadata tell "
          "them, else the last collection and the summaries",
          "text, 4.7.1", v3="4.7.1 checkpointCacheFlushValidation", editions=V3, warned=True),
    _rule("checkpoint.overlap", "error", "CLOSED: the call that loads began before the one that saves had ended",
          "text, 4.7.1", v3="4.7.1 checkpointCacheFlushValidation", editions=V3),
    _rule("checkpoint.duration", "info; error when it can't be computed",
          "the time from the first checkpoint saved to the last one loaded, with what remapping adds to a load",
          "text, 4.7.2", v3="4.7.2 checkpointTotalTestDuration", editions=V3),
    _rule("checkpoint.remap", "error",
          "the system's description tells no remap_time_in_seconds, one other than 0 where hosts write and read at the "
          "same time or 0 where they do not, or twice the time that lay between the calls",
          "text, 4.7.3; system description", v3="4.7.3 checkpointRemappingTimeReporting", editions=V3),
    _rule("checkpoint.simultaneous", "error; warning where false",
          "the system's description does not tell multi_host, simultaneous_write and simultaneous_read, or tells other "
          "than what the run shows",
          "text, 4.7.4; system description", v3="4.7.4 checkpointSimultaneousRwSupport", editions=V3),
    _rule("checkpoint.memory", "warning",
          "the hosts wrote less than 3 times their memory: it could serve the reads, unless caches were cleared",
          "text", v3="4.3.1 checkpointDataSizeRatio", editions=PHASED),
    _rule("checkpoint.accelerator", "error; warning in 2.0 and as published",
          "no accelerator told that the edition has, or a checkpoint larger than they hold together; in 2.0 and as "
          "published: larger than accelerators of 80 GiB hold",
          v3="4.3.4 checkpointAggregateAcceleratorMemory", editions=PHASED, warned=True),
    _rule("checkpoint.folder", "error", "checkpoints and results in one folder, or not told which",
          v3="4.4.1 checkpointPathArgs", editions=V3),
    _rule("checkpoint.filesystem", "error", "checkpoints and results on one file system, or not told",
          v3="4.4.2 checkpointFilesystemCheck", editions=V3, warned=True),
    _rule("checkpoint.differs", "error",
          "the summary's figures of checkpoints do not follow from those of rank 0", editions=PHASED),
    _rule("checkpoint.size", "error",
          "checkpoint_size_GB (GiB) is not what so many ranks write of the model, by its numbers", editions=PHASED),
    _rule("checkpoint.slowest", "warning",
          "the slowest rank took more than 1 % longer than rank 0, whose times are published: the text wants the "
          "longest duration and the lowest throughput", "v2.0, 2.2.3; v3.0's README of checkpointing", editions=PHASED),
    _rule("files.checkpoint_results", "error", "no sums over the calls, beside them",
          v3="2.1.22 checkpointingResultsJson", editions=V3),
    _rule("files.checkpoint", "error", "files of a call are missing", v3="2.1.25 checkpointingFiles", editions=V3),
    _rule("files.checkpoint_config", "error", "a call's dlio_config is not its three files",
          v3="2.1.26 checkpointingDlioConfig", editions=V3),
)
FILES = (
    _rule("files.phases", "error",
          "no folder of datagen or of the runs, or another one", v3="2.1.12 trainingPhases", editions=V3),
    _rule("files.datasize", "error",
          "no folder of datasize, or none in it", v3="2.1.12 trainingPhases", editions=V3, warned=True),
    _rule("files.datagen_count", "error", "not one call of datagen", v3="2.1.13 datagenTimestamp", editions=V3),
    _rule("files.datagen_stamp", "error",
          "datagen's folder is not named by its time", v3="2.1.13 datagenTimestamp", editions=V3),
    _rule("files.datagen", "error", "files of datagen are missing", v3="2.1.14 datagenFiles", editions=V3),
    _rule("files.datagen_config", "error",
          "datagen's dlio_config is not its three files", v3="2.1.15 datagenDlioConfig", editions=V3),
    _rule("files.results", "error; in 1.0 a warning",
          "no sums over the runs, beside them or beside the folder that holds them",
          v3="2.1.16 runResultsJson", editions=("1.0", "3.0")),
    _rule("files.run", "error; in 1.0 a warning",
          "files of a run are missing", "report.py, reportgen", v3="2.1.19 runFiles"),
    _rule("files.run_config", "error",
          "hydra's files of a run are missing", "report.py, reportgen", v3="2.1.20 runDlioConfig"),
    _rule("files.metadata", "error", "not one *_metadata.json: reportgen would pass the run over", editions=("2.0",)),
    _rule("files.ranks", "error in 3.0, else warning", "files of some ranks only", warned=True),
    _rule("submission.name", "error",
          "the organisation's folder has a name with other characters", v3="2.1.1 submitterRootDirectory"),
    _rule("submission.top", "error",
          "another folder beside the divisions", v3="2.1.2 topLevelSubdirectories", editions=V3),
    _rule("submission.folders", "error",
          "results or systems missing, or another folder", v3="2.1.5 requiredSubdirectories"),
    _rule("submission.code", "error",
          "CLOSED without the official code, by content whatever its folder is called",
          "text", v3="2.1.6 codeDirectoryContents"),
    _rule("submission.category", "error",
          "another folder than the benchmarks'", v3="2.1.10 workloadCategories", editions=V3),
    _rule("submission.workload", "error",
          "another workload than the edition's", v3="2.1.11 trainingWorkloads", editions=V3),
    _rule("code.image", "error", "a call names no image of the code, or one that is not in the tree",
          v3="LEAF-01", editions=V3),
    _rule("code.mixed", "error", "the calls of one result name different images of the code",
          "2.1.9, 3.6.1 of v3.0", editions=V3, warned=True),
    _rule("code.changed", "error",
          "the files of an image of the code do not give the hash noted with them, or in its name; the images that "
          "v3.0 published lack a file", v3="CHECK-02 poolImageSelfConsistency", editions=V3, warned=True),
    _rule("provenance.broken", "error", "provenance.json is missing though the metadata name it, or is not whole",
          v3="PROV-01 leafProvenance", editions=V3),
    _rule("provenance.differs", "error",
          "provenance.json names another code, edition or workload (core-config-v1 hash) than the run has",
          v3="PROV-01 leafProvenance", editions=V3),
    _rule("submission.manifest", "error",
          "submission.yaml does not list exactly the runs of the tree, or is of another edition",
          v3="PROV-02 submissionManifest", editions=V3),
    _rule("systems.files", "error",
          "another file in systems/, or one without its partner",
          v3="2.1.7 systemsDirectoryFiles", editions=V3),
    _rule("systems.missing", "error; in 1.0 and 2.0 a warning",
          "no description of a system with results, or no results of one described",
          "text", v3="2.1.8 resultsDirectorySystems"),
    _rule("systems.pdf", "error; in 1.0 and 2.0 a warning",
          "no pdf of a system", "text", v3="2.1.8 resultsDirectorySystems"),
    _rule("systems.name", "error", "submission_name is not the folder's name", v3="2.1.8 resultsDirectorySystems"),
    _rule("systems.hosts", "error", "the description is of other hosts than ran", v3="2.1.9 identicalSystemConfig"),
    _rule("systems.unfilled", "error in 3.0, else warning", "the template still says FILL IN",
          v3="2.1.7 systemsDirectoryFiles"),
    _rule("systems.schema", "error",
          "a field is missing, or none of the values that the edition's schema allows",
          v3="2.1.7 systemsDirectoryFiles", editions=V3),
)
AUDIT = (
    _rule("summary.incomplete", "error",
          "no metric, no AU, no samples/s or no number of accelerators that is a number: the run can't be "
          "judged"),
    _rule("summary.missing", "error", "no summary.json: the run did not end"),
    _rule("summary.foreign", "error", "summary.json is not as DLIO writes it"),
    _rule("printed.mean", "error", "a printed mean is not that of its epochs"),
    _rule("printed.io", "error", "MB/s are not samples/s x record length"),
    _rule("printed.verdict", "error", "success or fail do not follow from the printed AU"),
    _rule("au.differs", "error; info unless all steps were kept",
          "printed and recomputed AU differ by more than 0.02 points"),
    _rule("throughput.differs", "error; info unless all steps were kept",
          "printed and recomputed samples/s differ by more than 0.05 %"),
    _rule("au.impossible", "error", "an AU outside of what block times allow"),
    _rule("throughput.impossible", "error", "samples/s outside of what block times allow"),
    _rule("blocks.short", "error", "blocks are shorter than their computation"),
    _rule("au.rules", "warning",
          "printed success, but AU of whole epochs is below the threshold: it passes because first steps are "
          "dropped, which the text of v1.0 does not say", "text of v1.0, section on AU", editions=("1.0",)),
    _rule("au.prefetch", "warning; info since 2.0",
          "printed success, but what the storage sustains may be below the threshold: the first step, which does not "
          "count, reads as many batches as each accelerator has readers; in `dlemu audit` alone"),
    _rule("ranks.copied", "error",
          "a rank or an epoch has the steps, stamps or times of another: no two wait alike"),
    _rule("epochs.copied", "error", "two epochs have the same AU and samples/s to the last digit"),
    _rule("rank.differs", "error", "a rank's own AU does not follow from its steps"),
    _rule("ranks.count", "error", "more ranks' files than accelerators"),
    _rule("ranks.steps", "error", "a rank took another number of steps than the others"),
    _rule("steps.count", "warning", "the ranks took another number of steps than the dataset has"),
    _rule("steps.parts", "error",
          "a step's wait and computation do not add up to it within 0.25 s (published: 0.016 s)"),
    _rule("compute.time", "error; info where dlemu ran", "steps did not compute for as long as config.yaml says"),
    _rule("hosts.differ", "error", "the summary's hosts are not those of the ranks' files"),
    _rule("hosts.memory", "error", "the summary's memory is not that of the ranks' hosts; only the sum is compared"),
    _rule("files.count", "error", "config.yaml and summary.json tell different numbers of files"),
    _rule("epochs.count", "warning", "fewer or more epochs than configured"),
    _rule("file.broken", "error", "a file can't be read"),
    _rule("file.unusable", "error", "a block whose stamps or steps are not as DLIO writes them"),
    _rule("file.pruned", "info",
          "reviewers took the file's content out: it was kept, and is not broken", "reviews of v3.0"),
    _rule("config.value", "error", "a setting that is no value of its kind"),
    _rule("config.missing", "warning", "no settings"),
    _rule("config.assumed", "info", "settings taken from the official workload"),
    _rule("no.training", "error; info for another benchmark's run", "no training in the files"),
    _rule("summary.differs", "error", "a number of dlemu's own summary.json is not what its steps and facts give"),
    _rule("summary.notes", "warning", "a sentence of dlemu's own summary.json is not what they give"),
    _rule("result.broken", "error", "a file of dlemu's own result is missing or damaged"),
    _rule("unknown.all", "warning", "nothing can be recomputed"),
    _rule("unknown.steps", "info", "no rank's steps were kept"),
    _rule("unknown.ranks", "info", "steps of some ranks only"),
    _rule("unknown.stamps", "info", "only rank 0 kept time stamps"),
    _rule("audit.failed", "error", "a fault of dlemu: report it"),
)
OTHERS = (
    _rule("unapplied", "info", "a rule could not be applied; which one, and what it lacked"),
    _rule("run.other", "info",
          "a run of vector databases or key-value caches"),
    _rule("rehearsal", "info", "dlemu measured it: not for CLOSED", "section 1 of v3.0's text"),
    _rule("tree.empty", "error", "no run of any benchmark"),
)
# fmt: on
GROUPS: Mapping[str, tuple[KnownRule, ...]] = {
    "The dataset": DATASET,
    "Settings": SETTINGS,
    "The papers of a run": PAPERS,
    "Runs": RUNS,
    "Checkpoints": CHECKPOINTS,
    "Files, folders and descriptions": FILES,
    "Numbers": AUDIT,
    "What is not judged": OTHERS,
}
KNOWN: Mapping[str, KnownRule] = {rule.name: rule for rules in GROUPS.values() for rule in rules}


def severity_published(rule: str) -> Severity:
    """Return how grave a broken rule was in v3.0's own round."""
    known = KNOWN.get(rule)
    return "warning" if known and known.warned else "error"


def official_name(rule: str, edition: str, division: str) -> str | None:
    """Return what the edition's checker calls a rule of ours; None where it has none."""
    known = KNOWN.get(rule)
    called = known.official.get(edition) if known else None
    if division == "open":
        return {_OVERRIDES: OPEN_OVERRIDES, _CLOSED_PROCESSES: OPEN_PROCESSES}.get(called or "", called)
    return called
