"""`dlemu compare`: two runs, sweeps or searches side by side."""

from __future__ import annotations

import os

import click

from dlemu.cli.options import details_option


@click.command(name="compare")
@click.argument("folders", nargs=-1, required=True, metavar="A [B]", type=click.Path(file_okay=False))
@click.option("--output", metavar="DIR", help="Keep compare.json and the page here. [results/WORKLOAD/compare-TIME]")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@click.option("--json", "as_json", is_flag=True, help="Print compare.json, for programs; no page, kept with --output.")
@details_option
def command(folders: tuple[str, ...], output: str | None, report: bool, as_json: bool) -> None:
    """Compare A with B: differences with their uncertainty, and what they amount to in a year of training.

    \b
    dlemu compare results/unet3d/new-drive results/unet3d/old-drive
    dlemu compare results/unet3d/sweep-of-two-drives

    A and B are result folders of `dlemu train`, `checkpoint`, `sweep` or `size`, of DLIO or of MLPerf Storage, both of
    the same kind of job. For a single sweep over two drives, the drives are compared.

    Differences are of A relative to B: -12 % for total seconds means that A takes 12 % less time. compare.json and
    report.html go to a new folder, which is printed at the end.

    Exit status: 0 compared, 2 a usage error.
    """
    import signal

    from datagen.registry import installed_part
    from dlemu.cli.options import report_result, show
    from dlemu.ranks import interrupt_on
    from dlemu.results.answer_files import save_answer, to_json
    from dlemu.runner.run_folder import check_new, new_folder
    from dlemu.studies.answers import COMPARE
    from dlemu.studies.compare.compare_sides import compare
    from dlemu.studies.compare.sides import read_sides

    interrupt_on(signal.SIGTERM)

    if output is not None:
        check_new(output, "--output")
    a, b = read_sides(folders, installed_part("dlemu.foreign", "side"))
    comparison = compare(a, b)
    if as_json:
        click.echo(to_json(comparison), nl=False)
        if output:
            save_answer(output, COMPARE, comparison)
        return
    # The name is from a result, which may come from anywhere: it must not lead to another folder.
    name_of = a.workload.replace(os.sep, "-").strip(".") or "runs"
    folder = output or new_folder(name_of, "compare-")
    show("comparison", comparison, folder)
    save_answer(folder, COMPARE, comparison)
    report_result(report, folder)
