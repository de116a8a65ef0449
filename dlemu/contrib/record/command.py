"""`dlemu record`: record a user's training job as a workload."""

from __future__ import annotations

import click

from dlemu.extend import options as command_options


@click.command(name="record", short_help="Record a training job of your own as a workload.")
@click.argument("job", nargs=-1, metavar="-- COMMAND [WORD]...", type=click.UNPROCESSED)
@click.option("--steps", type=click.IntRange(0), default=0, help="Record this many batches per rank. [default: all]")
@click.option(
    "--minutes", type=command_options.Number(0.01, 1e6), default=10.0, show_default=True, help="Maximum time to record."
)
@click.option(
    "--skip", type=click.IntRange(0), default=10, show_default=True, help="Batches per rank to leave out as warm-up."
)
@click.option("--out", metavar="FILE.yaml", default="", help="Workload file to write. [default: job.yaml in --output]")
@click.option("--output", metavar="FOLDER", default="", help="Folder of the results.")
@click.option("--rows", metavar="FOLDER", default="", help="Use the rows that an earlier job left in this folder.")
@click.option("--replay/--no-replay", default=True, show_default=True, help="Replay it on the same storage at the end.")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@click.option("--json", "as_json", is_flag=True, help="Print record.json; dlemu prints nothing else on stdout.")
def command(
    job: tuple[str, ...],
    steps: int,
    minutes: float,
    skip: int,
    out: str,
    output: str,
    rows: str,
    replay: bool,
    report: bool,
    as_json: bool,
) -> None:
    """Record a training job of your own as a workload: what it reads, computes and waits for.

    \b
    dlemu record --out job.yaml -- torchrun --nproc-per-node 2 train.py --lr 0.1
    dlemu train workload=job.yaml dataset.data_folder=/mnt/drive/data ranks=8

    The job runs unchanged; a hook in its Python processes records what each batch cost, at less than 2 % of its time.
    After --steps or --minutes it continues unrecorded. Like --skip, batches that workers prefetch at the start of a
    pass are left out. Once the job ends, the recording is replayed on the same storage, from the same files, which are
    only read. The workload file (the recipe) names no path, file, host or person.

    Where a launcher drops the environment (containers, ssh, python -I): write `import dlemu.contrib.record.recorder`
    as the first line of the script; its measurements (rows) go to ./dlemu-record, and
    `dlemu record --rows dlemu-record` does the rest.

    What is recorded, and what is not yet: docs/record.md.

    Exit status: 0 the samples/s of the replay are within 5 % of the job's, 1 the recipe is marked as not replayable,
    2 a usage error, or nothing that could be recorded, 3 the job failed, 4 not verified (no replay, or a busy host),
    128 + signal.
    """
    from rich.console import Console

    from dlemu.contrib.record.page import print_record
    from dlemu.contrib.record.run import how_ended, record
    from dlemu.extend import DlemuError
    from dlemu.results.answer_files import to_json

    say = command_options.print_activity
    recorded = record(
        job, rows=rows, steps=steps, minutes=minutes, skip=skip, out=out, replay=replay, folder=output, on_step=say
    )
    if recorded.job_status:
        click.echo(f"the job ended {how_ended(recorded.job_status)}", err=True)
    if as_json:
        click.echo(to_json(recorded.answer), nl=False)
    else:
        print_record(recorded, Console())
        if report:
            command_options.make_page(recorded.folder)
    status = {True: 0, False: 1, None: 4}[recorded.answer.replayable]
    raise SystemExit(DlemuError.exit_status if recorded.job_status else status)
