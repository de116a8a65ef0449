"""`dlemu together`: run several jobs at the same time on one storage."""

from __future__ import annotations

import shlex

import click

from dlemu.cli.options import answer_options, config_dir_option


@click.command(name="together")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB JOB [JOB]...")
@config_dir_option
@click.option("--output", metavar="FOLDER", default="", help="Where results go; an interrupted run continues there.")
@answer_options("together.json")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
def command(jobs: tuple[str, ...], config_dir: str | None, output: str, as_json: bool, report: bool) -> None:
    """Run several jobs in parallel on one storage, and report what each costs the others.

    \b
    dlemu together training.yaml checkpoint.yaml
    dlemu together "train workload=unet3d ranks=8 dataset.data_folder=/mnt/nvme/unet3d" \\
                   "checkpoint workload=llama3_8b checkpoint.checkpoint_folder=/mnt/nvme/ckpt"

    A JOB is a workload's YAML file, or settings in quotes, which may start with `train` or `checkpoint` to override the
    workload's own command. Each job runs alone, then all start at the same time; each has its own results.

    Exit status: 0 all jobs completed, 2 a usage error, 3 a job failed, 128 + signal.
    """
    from datagen.errors import UserError
    from dlemu.cli.options import show_answer
    from dlemu.cli.study_terminal import StudyTerminal
    from dlemu.studies.together import run_together

    try:
        commands = [shlex.split(text) for text in jobs]
    except ValueError as error:
        raise UserError(f"{' '.join(jobs)}: not the settings of jobs: {str(error).lower()}") from None
    commands = [  # FILE is short for workload=FILE
        [f"workload={word}" if word.endswith((".yaml", ".yml")) and "=" not in word else word for word in words]
        for words in commands
    ]
    with StudyTerminal(folder_option="--output ") as terminal:
        answer, folder = run_together(commands, folder=output, config_dir=config_dir, on_event=terminal)
    show_answer(answer, folder, "together", as_json=as_json, page=report)
