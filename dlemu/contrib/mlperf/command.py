"""`dlemu mlperf`: MLPerf Storage's rules before a run, a rehearsal of a submission, and a check of results."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dlemu.extend import UserError
from dlemu.extend import options as command_options

if TYPE_CHECKING:
    from dlemu.contrib.mlperf.rehearsal.datasize import CheckpointDatasize
    from dlemu.contrib.mlperf.rules.editions import Reading
    from dlemu.contrib.mlperf.rules.training import Division

_EDITIONS = click.Choice(["2.0", "3.0"])
_hosts = click.option(
    "--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts that the ranks run on."
)
_memory = click.option(
    "--memory-gib", type=command_options.Number(0.001, 1e9), help="Memory of a host, in GiB; default: this host's."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON mapping, for programs.")


@click.group(name="mlperf", short_help="Rehearse an MLPerf Storage submission, and check one.")
def command() -> None:
    """MLPerf Storage: the rules before a run, a rehearsal of a submission, a check of the results.

    docs/mlperf.md says what dlemu can and can't do there: CLOSED results need mlpstorage and DLIO, unchanged.
    """


@command.command(name="datasize", short_help="The smallest dataset that the rules allow, and how to make it.")
@command_options.settings_options
@_hosts
@_memory
@click.option("--edition", type=_EDITIONS, help="Default: the newest that has this workload and accelerator.")
@_json
def datasize_command(
    overrides: tuple[str, ...],
    config_dir: str | None,
    cfg: bool,
    hosts: int,
    memory_gib: float | None,
    edition: str | None,
    as_json: bool,
) -> None:
    """Report how large the dataset must be for `ranks` accelerators, and print the command that makes it.

    \b
    dlemu mlperf datasize workload=unet3d accelerator=h100 ranks=8 dataset.data_folder=/mnt/nvme/unet3d
    dlemu mlperf datasize workload=unet3d accelerator=b200 ranks=16 --hosts 2 --memory-gib 512
    dlemu mlperf datasize workload=llama3_70b --hosts 8 --memory-gib 1024

    `ranks` are the accelerators of all hosts together. The rules require the larger of 5 times all hosts' memory and
    500 steps of each accelerator in an epoch; where memory decides, 1 % is added. Setting fewer files with
    dataset.num_files_train breaks that rule. For a model's checkpoints: the size of one, the space for ten, and whether
    the hosts' memory could serve the reads.

    Exit status: 0 done, 1 the settings break a rule, 2 a usage error.
    """
    from dlemu.config import datagen_command, load, to_yaml
    from dlemu.config.overrides import given_keys
    from dlemu.contrib.mlperf.lines import checkpoint_datasize_lines, datasize_lines
    from dlemu.contrib.mlperf.rehearsal.datasize import Datasize, checkpoint_datasize, datasize, host_memory_gib

    workload = load(overrides, config_dir=config_dir)
    if cfg:
        click.echo(to_yaml(workload), nl=False)
        return
    memory = host_memory_gib() if memory_gib is None else memory_gib
    memory_source = "measured here" if memory_gib is None else "as given"
    if workload.workflow.train:
        sets_files = "dataset.num_files_train" in given_keys(overrides)
        requested = workload.dataset.num_files_train if sets_files else None
        size: Datasize | CheckpointDatasize = datasize(
            workload, edition=edition, hosts=hosts, memory_gib_per_host=memory, files_requested=requested
        )
    else:
        size = checkpoint_datasize(workload, edition=edition, hosts=hosts, memory_gib_per_host=memory)
    answer = asdict(size)
    if isinstance(size, Datasize):
        answer["bound"]["files"] = size.bound.files
        answer["datagen"] = datagen_command(load([*overrides, *size.overrides], config_dir=config_dir))
        lines = datasize_lines(workload, answer["datagen"], size, memory_source)
    else:
        lines = checkpoint_datasize_lines(workload, size, memory_source)
    click.echo(json.dumps(answer, indent=2) if as_json else "\n".join(lines))
    raise SystemExit(1 if any(finding.severity == "error" for finding in size.findings) else 0)


@command.command(name="run", short_help="Rehearse a submission: all its runs, laid out as its tree.")
@command_options.settings_options
@click.option("--org", "organisation", default="rehearsal", show_default=True, help="Name of the submitter's folder.")
@click.option("--system", default="system", show_default=True, help="Name of the system's folder.")
@_hosts
@_memory
def run_command(
    overrides: tuple[str, ...],
    config_dir: str | None,
    cfg: bool,
    organisation: str,
    system: str,
    hosts: int,
    memory_gib: float | None,
) -> None:
    """Rehearse a CLOSED result of v3.0: all its runs one after another on one dataset, laid out as a tree, and checked.

    \b
    dlemu mlperf run workload=unet3d accelerator=b200 ranks=8 dataset.data_folder=/mnt/nvme/unet3d \\
        dataset.num_files_train=28000 --org mylab --system nvme-box
    dlemu mlperf run workload=unet3d accelerator=b200 ranks=16 --hosts 2 launcher="mpirun -np {ranks} -f hosts" ...
    dlemu mlperf run workload=llama3_8b checkpoint.checkpoint_folder=/mnt/nvme/ckpt

    A warm-up run and 5 measured runs, each with a different shuffle. Every run is a `dlemu train`, kept in runs/; tree/
    has the files that mlpstorage v3.0 would write. A model's checkpoints are written and read instead, in two runs of
    `dlemu checkpoint`, or in one where ten exceed three times the hosts' memory. The runs must follow one another, so
    an interrupted rehearsal starts over in a new folder. This is not a submission: CLOSED results need mlpstorage and
    DLIO, unchanged.

    Exit status: 0 all runs pass and no rule is broken, 1 otherwise, 2 a usage error, 3 a run failed, 4 no verdict (no
    rule is broken, and only this host kept runs from passing), 128 + signal.
    """
    import shlex

    from rich.console import Console

    from dlemu.config import load, to_yaml
    from dlemu.config.overrides import take_word
    from dlemu.contrib.mlperf.lines import result_lines, verdict_line
    from dlemu.contrib.mlperf.rehearsal import NOTE
    from dlemu.contrib.mlperf.rehearsal.datasize import host_memory_gib
    from dlemu.contrib.mlperf.rehearsal.edition_tree import RehearsalPlan
    from dlemu.contrib.mlperf.rehearsal.rehearse import rehearsal_of
    from dlemu.extend import run_folder as result_folder
    from dlemu.report.table import print_lines

    if cfg:
        click.echo(to_yaml(load(overrides, config_dir=config_dir)), nl=False)
        return
    folder, remaining = take_word(overrides, "output.folder")
    launcher, remaining = take_word(remaining, "launcher")
    workload = load(remaining, config_dir=config_dir)
    folder = folder or result_folder.new_folder(workload.model.name, "mlperf-")
    result_folder.check_new(folder)
    plan = RehearsalPlan(
        organisation=organisation,
        system=system,
        workload=workload,
        overrides=tuple(remaining),
        folder=folder,
        launcher=launcher,
        config_dir=config_dir,
    )
    memory = host_memory_gib() if memory_gib is None else memory_gib
    rehearsal = rehearsal_of(plan, hosts, memory, lambda line: click.echo(line, err=True))
    try:
        checked = rehearsal.run()
    except UserError:
        raise
    except BaseException:
        click.echo(f"what was measured is in {folder}: start again in a new folder", err=True)
        raise
    exit_status, lines = rehearsal.outcome(checked)
    hint = f"what is not by the rules: dlemu mlperf check {shlex.quote(folder)}   (tree/ and runs/ are in it)"
    print_lines([*(lines or result_lines(checked)), verdict_line(checked), NOTE, hint], Console())
    raise SystemExit(exit_status)


@command.command(name="check", short_help="Check finished runs or a submission tree against the rules.")
@click.argument("folder", metavar="DIR")
@click.option("--edition", type=_EDITIONS, help="Default: that of the tree's runs.")
@click.option(
    "--rules",
    "reading",
    type=click.Choice(["published", "today"]),
    default="today",
    show_default=True,
    help="Rules of v3.0 as its published round was judged, or as its tool reads them today.",
)
@click.option("--division", type=click.Choice(["closed", "open"]), help="Default: what the tree says, else closed.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the findings as CSV, one per line.")
@_json
def check_command(
    folder: str, edition: str | None, reading: Reading, division: Division | None, csv_file: str | None, as_json: bool
) -> None:
    """Check a submission tree, a results folder of mlpstorage, or a single run against MLPerf Storage's rules.

    \b
    dlemu mlperf check results/unet3d/mlperf-20251121-134501
    dlemu mlperf check submission/ --edition 3.0 --csv findings.csv
    dlemu mlperf check storage_results_v3.0/ --rules published
    dlemu mlperf check results/training/unet3d/run/20251121_134501

    AU and samples/s are recomputed from the ranks' own files, even where a summary says "success". Brackets give the
    official checker's name of a rule.

    Exit status: 0 no rule is broken, 1 at least one is, 2 a usage error.
    """
    from rich.console import Console

    from dlemu.contrib.mlperf.audit.audit_answer import write_csv
    from dlemu.contrib.mlperf.check.judge import check_folder, check_report, finding_rows
    from dlemu.contrib.mlperf.lines import finding_lines, result_lines, verdict_line
    from dlemu.contrib.mlperf.rules.known import Finding
    from dlemu.report.table import print_lines

    checked = check_folder(folder, edition, division, reading)
    if {finding.rule for finding in checked.findings} == {"tree.empty"}:
        search = "looked in it and below for runs as mlpstorage and DLIO leave them"
        raise UserError(f"no results found in {folder}: {search}; name the folder above them")
    if csv_file:
        write_csv(csv_file, Finding, finding_rows(checked))
    if as_json:
        click.echo(json.dumps(check_report(checked), indent=2))
    else:
        findings = finding_lines(checked.findings, checked.root)
        print_lines([*result_lines(checked), "", *findings, verdict_line(checked)], Console())
    raise SystemExit(0 if checked.valid else 1)
