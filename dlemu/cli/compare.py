"""`dlemu compare`: two runs, sweeps or searches side by side; or two drives, after the same training on both."""

from __future__ import annotations

import os

import click

from dlemu.cli.options import details_option, make_options


@click.command(name="compare")
@click.argument("folders", nargs=-1, required=True, metavar="A [B] | [KEY=VALUE]... drives=A,B")
@make_options("files of the datasets")
@click.option("--output", metavar="DIR", help="Keep compare.json and the page here. [results/WORKLOAD/compare-TIME]")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@click.option("--json", "as_json", is_flag=True, help="Print compare.json, no page; saved only with --output.")
@details_option
def command(folders: tuple[str, ...], make: bool, yes: bool, output: str | None, report: bool, as_json: bool) -> None:
    """Compare A with B: differences with their uncertainty, and what they amount to in a year of training.

    \b
    dlemu compare results/unet3d/new-drive results/unet3d/old-drive
    dlemu compare workload=unet3d ranks=2 scale=laptop drives=/mnt/nvme/unet3d,s3://bucket/unet3d --make

    A and B are result folders of `dlemu train`, `checkpoint`, `sweep` or `size`, of DLIO or of MLPerf Storage, both of
    the same kind of job. For a single sweep over two drives, the drives are compared. With settings, the same training
    runs on both drives first, read past the page cache; a drive is a folder, or s3://BUCKET/PREFIX.

    Differences are of A relative to B: -12 % for total seconds means that A takes 12 % less time. compare.json and
    report.html go to a new folder, which is printed at the end.

    Exit status: 0 compared, 2 a usage error.
    """
    import signal

    from datagen.registry import installed_part
    from dlemu.cli.options import make_page, show
    from dlemu.ranks import interrupt_on
    from dlemu.results.answer_files import save_answer, to_json
    from dlemu.runner.run_folder import check_new, new_folder
    from dlemu.studies.answers import COMPARE
    from dlemu.studies.compare.compare_sides import compare
    from dlemu.studies.compare.sides import read_sides

    interrupt_on(signal.SIGTERM)
    if output is not None:
        check_new(output, "--output")
    if any("=" in word and not os.path.exists(word) for word in folders):  # settings, not folders
        folders = (_run_on_both(folders, make=make, yes=yes, as_json=as_json),)
    a, b = read_sides(folders, installed_part("dlemu.foreign", "side"))
    comparison = compare(a, b)
    if as_json:
        click.echo(to_json(comparison), nl=False)
        if output:
            save_answer(output, COMPARE, comparison)
        return
    # The result may come from anywhere, so its name must not lead to another folder.
    name = next((run.workload for run in a.runs.values()), "").replace(os.sep, "-").strip(".") or "runs"
    folder = output or new_folder(name, "compare-")
    show("compare", comparison, folder)
    save_answer(folder, COMPARE, comparison)
    if report:
        make_page(folder)


def _run_on_both(words: tuple[str, ...], *, make: bool, yes: bool, as_json: bool) -> str:
    """Run a sweep over two drives, past this host's page cache, and return its folder. Raises UserError."""
    from datagen.errors import UserError
    from dlemu.cli.frontends import make_here
    from dlemu.cli.study_terminal import StudyTerminal
    from dlemu.config import load
    from dlemu.config.overrides import DATA_FOLDER, given_keys, points
    from dlemu.metrics.cache import CACHE_KEYS, eviction
    from dlemu.studies.sweep.run import sweep

    runs = list({run.settings.get(DATA_FOLDER): run for run in points(words)}.values())  # one for each drive
    if len(runs) != 2:
        raise UserError("wanted two folders of results, or settings with two drives, as in drives=/mnt/a,s3://bucket/b")
    if not given_keys(runs[0].words) & CACHE_KEYS:
        words += (eviction(load(runs[0].words).dataset.format),)
    if make:
        for run in runs:
            make_here(load(run.words), as_json=as_json, yes=yes)
    with StudyTerminal() as terminal:
        sweep(words, on_event=terminal)
    return terminal.folder
